# The course in JupyterLab, without a GPU:
#   docker build -t grpo-lab .  &&  docker run --rm -p 127.0.0.1:8888:8888 grpo-lab
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 learner
USER learner
RUN mkdir /home/learner/grpo_lab
WORKDIR /home/learner/grpo_lab

# PyTorch's own index has a CPU build, which is several GB smaller than the one on PyPI. The pin is the tested one.
COPY --chown=learner:learner constraints.txt ./
RUN python -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
        "$(grep '^torch==' constraints.txt)"

COPY --chown=learner:learner . .
RUN .venv/bin/python -m pip install --no-cache-dir -c constraints.txt -e '.[lab]'

ENV PATH=/home/learner/grpo_lab/.venv/bin:$PATH
# All addresses of the container; `docker run -p 127.0.0.1:…` decides who reaches them, and JupyterLab asks for its token.
ENV JUPYTER_CONFIG_DIR=/home/learner/.jupyter
RUN mkdir "$JUPYTER_CONFIG_DIR" \
    && echo 'c.ServerApp.ip = "0.0.0.0"; c.ServerApp.port = 8888; c.ServerApp.port_retries = 0' > "$JUPYTER_CONFIG_DIR/jupyter_server_config.py"
EXPOSE 8888
CMD ["grpo-lab", "labs", "open", "--no-browser"]
