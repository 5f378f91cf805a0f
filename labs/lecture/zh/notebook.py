# %% [markdown]
# # GRPO 稳定性现场演示
# 按两次 **Shift+Enter**。面板播放录制的运行，所以不需要 GPU，也不需要网络。想要更大的画面：
# *View › Appearance › Presentation Mode*，或者右键点击面板，选 *Create New View for Cell Output*。
