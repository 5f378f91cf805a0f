# %% [markdown]
# # 实验 3：错误链
#
# ```
# RuntimeError: CUDA error: device-side assert triggered
# File "TensorCompare.cu", line 110
# Assertion `input[0] != 0` failed.
# ```
#
# 现场报告 CUDA-001：第一轮（报告中的一轮就是一步）训练正常，第二轮 `torch.multinomial` 失败，整个进程随之死掉。
# 报告的结论是，第一个概率不得为 0。在这个实验里，你先引发这次崩溃，再从它出发，一个环节一个环节往回走，
# 直到最先坏掉的那个数；然后在两处打断这条链，最后根治这次运行。

# %% [markdown] tags=["instructor"]
# **安排，60 分钟。** 录制的运行、预测与崩溃 7 · 追踪与 `order` 9 · `accepts` 与 `face` 11 · `finite_first`
# 及其 A/B 对比 7 · fp16 AdamW 与 `epsilon` 6 · 根治后的运行 5 · 走读 12 · 0 · inf 与问题 3（时间不够就省去 0 · inf）。
#
# **留意这些误解。** *input[0] 就是第一个概率。* *traceback 里的那一行就是祸首*（CUDA 报错更晚，位置也不同）。
# *梯度是 NaN，损失一定也是 NaN。* *范数健康，这一步就健康。* *try / except 能让运行继续*（CUDA 上下文已经丢失）。

# %% [markdown]
# ## 1. 一次录制的运行
#
# 这是 SmolLM2-135M 使用 fp16 权重的一次录制。看链条：每行是一个环节，按一步中计算的先后排列。这次运行每一步做两次更新。
# 运行很短，所以每次更新各占一列，两列合起来是一步。加框的是最先断裂的环节。首个断点之后又过了几步（不是几列），运行才崩溃？

# %% [markdown]
# ## 2. 预测
#
# 你要再次运行实验 2 的损失，学习率相同，批次大小也相同（种子不同）。不同的是权重用 fp16，它的最大数是 65,504；AdamW 的 eps 是 2e-6，
# 因为 fp16 会把常用的 1e-8 舍入为 0。对数概率和损失用 fp32，多数训练器都是这样。
# 录制的运行里，加框的是梯度；在这里，最先断裂的同样是梯度。

# %%
# %%exercise forecast
# 最先断裂的仍是梯度。同一次更新的损失是多少？
#   a  NaN
#   b  inf
#   c  一个巨大的有限数
#   d  一个平常的数，小于 10

# %% [markdown]
# ## 3. 让它发生

# %% [markdown]
# 崩溃发生在子进程里。这个笔记本仍然可用，下一次运行也可以进行：按“开始”，或者运行这个单元格。

# %% [markdown]
# 在 GPU 上，这种隔离很重要。设备端断言会毁掉所在进程的 CUDA 上下文：此后每个调用都失败，连权重都存不下来，只有新开一个进程才行。
# 报告建议“重置 CUDA 状态”，但 CUDA 没有这样的重置。

# %% [markdown] tags=["instructor"]
# **提问。** “如果这发生在笔记本自己的进程里，你会失去什么？”GPU 上的一切，以及指向那里的每个变量。
# **要说的话。** “训练要放在一个可以死掉的进程里。”

# %% [markdown]
# ## 4. 追踪原因
#
# 从崩溃处往回走。运行在第一步记录了下面这些环节，按计算的先后排列：这里是 0 号更新的结尾，以及 1 号更新。

# %% [markdown]
# <details><summary>我们的测量结果：跑完之后再打开</summary>
#
# 从上往下读。0 号更新看起来没有问题：范数不到 2，裁剪把它降到 0.5。在它之后，有一个 token 的概率比参考策略下的*低* 42 奈特。
# （`largest` 不带符号：对数比率是 −42，`kl_delta`，即参考 − 策略，是 +42。）所以它的比率接近 0，而 KL 估计对 +42 取 exp：
# 在我们的机器上，损失是 10¹⁵。但它是**有限值**，打印损失的日志会显示一个数。这个损失的梯度在反向穿过 fp16 网络的途中超过了 65,504：
# fp16 存下的是 inf，后面的层再把它变成 NaN（inf − inf，0 · inf）。`moments` 是 AdamW 的两个滑动平均。（范数健康的一次更新，怎么能让一个 token 移动 42 奈特？第 8 节回答。）
#
# 首个断点之后只过了一步，运行就崩溃了，第 1 节录制的运行也是这样：更新之后权重是 NaN，下一次采样就失败。
#
# </details>
#
# 现在把整条链按顺序排好。哪个是原因，哪个是结果？

# %%
# %%exercise order
# 先因后果，从第一个环节一直到崩溃。把八段文字放进一个元组：
#   "multinomial"          torch.multinomial 拒绝这一行
#   "nan weights"          AdamW 把每个权重都写成了 NaN
#   "large loss"           损失极大，但是有限
#   "nan logits"           下一次前向计算给出 NaN
#   "far token"            一个 token 离参考策略几十奈特
#   "nan probabilities"    NaN 的 softmax 是 NaN
#   "nan gradient"         反向传播时 fp16 上溢
#   "nan clipped"          裁剪把全部梯度乘以 max_norm / norm，而范数是 NaN

# %% [markdown]
# 再看 `gradients` 和 `clipped_gradients`。裁剪之前，还有一些梯度是有限的。裁剪把它们全都乘以 `max_norm / norm`，而范数是 NaN。
# 所以裁剪没有止住损害，反而让损害扩散开来。

# %% [markdown]
# ## 5. multinomial 内部的检查
#
# 第一个概率真的不得为 0 吗？

# %% [markdown]
# 不是。`torch.multinomial` 在抽样之前，先对**全部**数一起做检查。结果是只含**一个**布尔值的张量。
# 在 GPU 上，内核随后断言这个布尔值，也就是它的 `input[0]`，不为 0。请写出这个检查。

# %%
# %%exercise accepts
"""如果通过这项检查，返回 True：没有 NaN、inf 或小于 0 的数。（一行全是零能通过，之后才遭拒绝。）"""

# %% [markdown]
# logits 有限时，softmax 会违反这条规则吗？不会：它的输出在 0 和 1 之间，总和为 1。
# 所以，有一行遭到拒绝，就说明 logits 已经损坏，而原因还在更前面，在权重里。

# %% [markdown] tags=["instructor"]
# **要说的话。** “这条消息说的是一个只有一个元素的布尔值。报告把它当成了第一个概率；这样理解也很自然。”
# 这个检查是 PyTorch 的 Distributions.cpp 中的 `(max < inf) & (min >= 0)`。内核是 TensorCompare.cu 中的
# `_assert_async_cuda_kernel`，所以消息里的文件名讲的是*比较张量*。
#
# **常见错误。** `not (p < 0).any()`：它会放过 NaN。

# %% [markdown]
# ## 6. 一种故障，三张面孔
#
# 同样是拒绝，每个平台上的消息都不一样：
#
# | 平台 | 消息 |
# |---|---|
# | CPU | ``RuntimeError: probability tensor contains either `inf`, `nan` or element < 0`` |
# | CUDA, Linux | ``TensorCompare.cu:…: … Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.`` |
# | CUDA, Windows | ``TensorCompare.cu:…: … Assertion `input[0] != 0` failed.`` |
#
# 微软的编译器打印条件本身，其他编译器打印那段文字。在 CUDA 上，随后还有一段 Python 的 traceback，`device-side assert triggered`。
# 它写的是程序当时已经走到的那一行。先设置 `CUDA_LAUNCH_BLOCKING=1`，再相信那一行。写一个函数来读这样的日志。

# %%
# %%exercise face
"""返回日志所显示的那张面孔的名称，或者 "other"。"""

# %% [markdown]
# ## 7. 打断链条：先检查是否有限的防护
#
# 报告中的防护是 `if grad_norm > 10: skip`。下面是同一次 fp16 运行，带上这个防护、报告的另外六个防护、
# 它更小的裁剪范围和它的 beta。（有了 `nan_passes`，我们的防护就照报告的写法比较。）

# %% [markdown]
# 唯一一次应当拒绝的更新，这个防护偏偏放了过去。请重写它。*阶段*是一步中防护可以起作用的位置；这个防护作用于梯度。
# 它从 `step.grad_norm` 读取裁剪之前的范数。`Outcome(value)` 表示继续。`Outcome(value, verdict, reason)` 表示拒绝，
# 这里的*裁决*是 `SKIP_STEP`。

# %%
# %%exercise finite_first
"""拒绝范数超过 10、为无穷大或为 NaN 的更新。"""

# %% [markdown]
# 现在，在同一次运行中用你的防护代替报告中的防护：

# %% [markdown]
# <details><summary>我们的测量结果：跑完之后再打开</summary>
#
# 没有崩溃，也没有权重损坏。现在数一数拒绝了多少步，再看看奖励：第一步之后它就跌到 0，再也没有起来。
# 你的防护拒绝了带 NaN 的更新。但损害在前一次更新就已造成，当时范数是健康的，任何检查梯度的防护都看不见。
# 运行还活着，却什么都忘了。
#
# </details>

# %% [markdown] tags=["instructor"]
# **提问。** “更短的正确写法是哪一个？”只写 `norm <= 10`。与 NaN 的任何比较都是 False，所以要检查的是你*接受*的值。
# **要说的话。** “先检查是否有限，再用阈值，然后裁剪。”

# %% [markdown]
# ## 8. 范数健康，权重已死
#
# 梯度有限就够了吗？下面每个批次只更新一次，用报告自己的学习率 1e-5，正确的分母，fp16 权重，以及 AdamW 的默认设置：

# %% [markdown]
# 范数健康，损失除舍入误差外是 0，没有一个检查梯度的防护起作用。**一次**更新之后，99.9 % 的权重是 NaN 或 inf。
# AdamW 让一个权重移动 $\text{rate} \cdot m / (\sqrt v + \text{eps})$。在 fp16 中：

# %%
# %%exercise epsilon
# 为 fp16 权重选择 AdamW 的 eps，学习率为 1e-5，要求
#   - fp16 不会把 eps 舍入为 0，
#   - 第一次更新中，没有权重移动超过 0.001（学习率的一百倍），
#   - 最大的移动仍不小于学习率。
# 选一个十的幂就够了。检查程序用它做一次更新。

# %% [markdown]
# eps 只是没有舍入成零还不够：看看 1e-7 让一个权重移动了多远，而学习率只是 0.00001。这也是第 3 节那次崩溃的第一个环节：
# 那里的 eps 是 2e-6，大多数梯度的平方下溢为 0，第一次更新让一个权重移动了 0.8，而不是 0.0003。
# 在 fp32 和 bf16 中，常用的 1e-8 没有问题，因为它们的最小数在 1e-38 附近。用这两种格式之一存放权重，是更好的根治办法。

# %% [markdown]
# ## 9. 零乘以无穷大
#
# 从有限的损失到 NaN 的梯度还有另一条路，fp32 中也走得通。这次运行把一个对数比率推到 100 奈特（注入的：这个小模型自己不会漂移这么远）。

# %% [markdown]
# exp 给出 inf，min 选中裁剪后的分支，损失是 −1.2。反向传播把没有用到的分支的梯度 0，乘以 exp 的导数 inf。
# 在链条上，损失是健康的，对数比率处的梯度已经断裂。

# %% [markdown]
# ## 10. 根治
#
# 这次崩溃只有一个原因：AdamW 的梯度平方在 fp16 中下溢。即使不崩溃，这次运行也学不到什么，因为它的比率与参考策略比较。
# 两处都修好，模型才学得会。每个场景都写明了能让模型学会的最小改动。
# `suggest` 根据运行的配置和记录找出它；在终端里，`grpo-lab suggest RUN` 做同样的事，并把根治后的配置写入文件。

# %% [markdown]
# 名为 *stop* 的改动只结束崩溃，仅此而已。下面是名为 *heal* 的改动，学习率相同，种子相同，崩溃的那次运行画在后面：

# %% [markdown]
# <details><summary>我们的测量结果：跑完之后再打开</summary>
#
# 学习率相同，种子相同：运行走完全部四十步，范数不超过 5.3，最后十步的奖励升到 0.60。在 200 道留出的加法题上，从 0.285 升到 0.58。
# 两处改动缺一不可：只换成 fp32 权重，就是实验 2 的那次运行，只是种子不同；只换成正确的分母，会和之前一样在同一步崩溃。
#
# </details>

# %% [markdown] tags=["instructor"]
# **提问。** “根治后的运行开着哪个防护？”只有报告中的裁剪。**要说的话。** “在第 7 节，防护让一次已经失去一切的运行活了下去。
# 在这里，没有什么需要拒绝。先止住崩溃，再去找原因。”

# %% [markdown]
# ## 11. 在训练器里走一遍
#
# 链上的每个环节都是一行你读得到的代码：本课程的训练器是软件包里的文件夹 `core/`，共 900 行。下一个单元格显示它的一步，带行号。

# %% [markdown]
# 从那里跟着调用走。`Trainer.rollout` 通向 `sample.py`，`Trainer.backward` 通向 `loss.py`，`Updates.make` 通向 `update.py`，
# `ctx.apply` 通向 `hooks.py`。在编辑器里打开这些文件，或者打印出来：下一个单元格打印一个文件，带行号。边走边换文件名。

# %% [markdown]
# 八个问题。每个都用文件和行号回答，例如 `"train.py:83"`：把八个答案放进名为 `where` 的字典。该语句的任何一行都算对。

# %% tags=["data"]
# %%exercise walk
# 在哪一行……
#   drawn    从概率中抽取一个 token？
#   old      计算或交出旧的对数概率？
#   spread   计算一组的标准差？
#   ratio    对数比率变成比率，并对它求梯度？
#   minimum  取两个乘积中较小的一个？
#   penalty  计算 k3？它的 exp 使第 4 节的损失变得巨大。
#   guards   防护在优化器走一步之前看到梯度？
#   noted    记下一个阶段的值，使第一个 NaN 有位置和名称？
# 答案的写法，换成你的文件和行号：
# where = {"drawn": "train.py:83", "old": "…", "spread": "…", "ratio": "…",
#          "minimum": "…", "penalty": "…", "guards": "…", "noted": "…"}

# %% [markdown]
# 再读一遍 `noted`：它记下每个阶段的每个张量，在任何防护拒绝这一步之前，而且它不作判断。梯度和权重由 `core/` 之外的两个观察者
# （`training/observers.py`）以同样的方式记下。所以进程死掉之后，`first_break()` 仍能说出第 4 节的那个环节。

# %% [markdown]
# ## 12. 试试其他设置
#
# 按**重置**，改一处，再运行一次。这些运行中哪些能活下来，关键在哪个环节？每次运行之前先猜一猜。
#
# 1. `guards.safe_sampling=on`：报告中的安全生成（温度、top-p、top-k）。
# 2. `guards.clamp_log_ratio=on`：报告中的截断，在 exp 之前。
# 3. `model.precision=bf16_pure`：有效数字是 8 个二进制位，fp16 有 11 个；最大数是 3 · 10³⁸。损失仍用报告中的。

# %% [markdown] tags=["instructor"]
# **结果**（一个种子）。1 和 2 仍在同一步崩溃：1 是因为无论怎样改动分布，NaN 还是 NaN；2 是因为 KL 估计的 exp 没有上限。
# 3 能走到最后，权重有限，范数最高 156；奖励从 0.37 降到 0.27，留出集从 0.285 降到 0.215。这就是实验 2 的那次运行：
# 更宽的格式把崩溃变成了爆炸。

# %% [markdown]
# ## 13. 问问自己

# %% [markdown]
# **接下来：** 实验 4 逐个测试防护：每一个止住什么，代价是什么，掩盖了什么。
