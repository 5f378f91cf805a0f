# %% [markdown]
# # GRPO stability, live
# Press **Shift+Enter** twice. Everything replays from recordings: no GPU, no network, no waiting. For more room:
# *View › Appearance › Presentation Mode*, or right-click the panel and *Create New View for Cell Output*.

# %% tags=["hidden"]
from grpo_lab.ui.widgets import Lecture

Lecture()
