# %% [markdown]
# # GRPO stability, live
# Press **Shift+Enter** twice. The panel replays recordings, so it needs no GPU and no network. For more room:
# *View › Appearance › Presentation Mode*, or right-click the panel and *Create New View for Cell Output*.

# %% tags=["hidden"]
from grpo_lab.ui.widgets import Lecture

Lecture()
