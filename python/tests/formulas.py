# SPDX-License-Identifier: Apache-2.0
"""The formulas of include/clmgk/variants.h in PyTorch's operations, for values and gradients in double precision."""
import torch


def visible(n, s, batch=1, causal=False, alignment="bottom-right", window_left=None, window_right=None, lengths=None,
            lengths_q=None):
    """[B,N,S]: whether query i sees key j."""
    keys = torch.full((batch,), s) if lengths is None else lengths
    rows = torch.full((batch,), n) if lengths_q is None else lengths_q
    i, j = torch.arange(n)[None, :, None], torch.arange(s)[None, None, :]
    distance = j - diagonal(n, s, alignment, keys)[:, :, None]
    seen = (j < keys[:, None, None]) & (i < rows[:, None, None])
    if causal:
        seen = seen & (distance <= 0)
    if window_left is not None:
        seen = seen & (-distance <= window_left)
    if window_right is not None:
        seen = seen & (distance <= window_right)
    return seen


def diagonal(n, s, alignment, lengths):
    """[B,N]: the position of query i among the keys."""
    shift = {"top-left": torch.zeros_like(lengths), "bottom-right": torch.full_like(lengths, s - n),
             "lengths": lengths - n}[alignment]
    return torch.arange(n)[None] + shift[:, None]


def _components(array, axes):
    """A prior or a variance as [H or 1,M,1,S or 1]."""
    array = array[None] if axes == 1 else array
    return array[:, :, None, None] if axes < 3 else array[:, :, None, :]


def mixture_scores(q, k, score, estep, prior=None, variance=None, shift=None, softcap=0.0):
    """w [B,H,N,S], from k [B,H,M,S,D]."""
    k = k if shift is None else k + shift[:, :, None]
    variance = q.shape[-1] ** 0.5 if variance is None else variance
    if isinstance(variance, torch.Tensor):
        variance = _components(variance, variance.ndim)
    products = torch.einsum("bhid,bhmjd->bhmij", q, k)
    if score == "gaussian":
        norms = (q ** 2).sum(-1)[:, :, None, :, None] + (k ** 2).sum(-1)[:, :, :, None, :]
        s = (products - norms / 2) / variance
    else:
        s = products / variance
        s = softcap * torch.tanh(s / softcap) if softcap else s
    if estep == "hard":
        return s.amax(2)
    weights = torch.full((1, 1), 1 / k.shape[2], dtype=q.dtype) if prior is None else _components(prior, prior.ndim)
    return torch.logsumexp(s + torch.log(weights), 2)


def mixed_scores(q, k, variant, mix, mix_weight=None, mix_offset=None, heads=None, softcap=0.0, mix_hidden=0,
                 mix_hidden_offset=None):
    """w [B,H,N,S] of the variants with mixed heads, without noise."""
    g = q @ k.transpose(-1, -2)
    mix = mix if mix.ndim == 2 else mix.expand(heads, -1)
    if mix_hidden:
        units = torch.einsum("uk,bkij->buij", mix, g)
        units = units if mix_hidden_offset is None else units + mix_hidden_offset[:, None, None]
        weight = mix.new_ones(heads, mix_hidden) if mix_weight is None else mix_weight
        a = torch.einsum("hu,buij->bhij", weight, torch.relu(units))
        a = a if mix_offset is None else a + mix_offset[:, None, None]
    elif "gfish" in variant:
        x = torch.relu(mix[None, :, :, None, None] * g[:, None])
        weight = torch.ones_like(mix) if mix_weight is None else mix_weight
        a = torch.einsum("hk,bhkij->bhij", weight, x)
        a = a if mix_offset is None else a + mix_offset[:, None, None]
    else:
        a = torch.einsum("hk,bkij->bhij", mix, g)
    s = a / q.shape[-1] ** 0.5
    return softcap * torch.tanh(s / softcap) if softcap else s


def attention(q, k, v, *, variant="softmax", score="default", estep="soft", prior=None, variance=None, shift=None,
              mix=None, mix_weight=None, mix_offset=None, heads=None, softcap=0.0, mix_hidden=0,
              mix_hidden_offset=None, mix_after=None, bias=None, slopes=None, sinks=None, kept=None, dropout=0.0, **mask):
    """O and L. `kept` [B,H,N,S] is the dropout mask, with mix_after [B,A,N,S]."""
    heads = heads if mix_after is None else mix_after.shape[1]
    if mix is not None:
        w = mixed_scores(q, k, variant, mix, mix_weight, mix_offset, heads, softcap, mix_hidden, mix_hidden_offset)
    else:
        k = k if variant == "mgk" else k[:, :, None]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        if score == "default":
            score = "dot" if variant == "softmax" else "gaussian"
        w = mixture_scores(q, k, score, estep, prior, variance, shift, softcap)
    batch, count, n, s = w.shape
    count = count if mix_after is None else mix_after.shape[0]
    v = v.repeat_interleave(count // v.shape[1], 1)
    seen = visible(n, s, batch, **mask)
    if bias is not None:
        w = w + bias
    if slopes is not None:
        lengths = mask.get("lengths")
        place = diagonal(n, s, mask.get("alignment", "bottom-right"), torch.full((batch,), s) if lengths is None else lengths)
        w = w - slopes[:, None, None] * (torch.arange(s) - place[:, :, None]).abs()[:, None]
    w = w.masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:  # rows beyond lengths_q have none
        rows = torch.full((batch,), n) if mask.get("lengths_q") is None else mask["lengths_q"]
        inside = (torch.arange(n) < rows[:, None])[:, None, :, None]
        sink = sinks[None, :, None, None].expand(batch, -1, n, 1).masked_fill(~inside, -torch.inf)
        w = torch.cat((w, sink), -1)
    empty = (w == -torch.inf).all(-1, keepdim=True)
    w = w.masked_fill(empty, 0)
    lse = torch.logsumexp(w, -1)
    p = torch.exp(w - lse[..., None]).masked_fill(empty, 0)[..., :s]
    p = p if kept is None else p * kept / (1 - dropout)
    p = p if mix_after is None else torch.einsum("ha,baij->bhij", mix_after, p)
    return p @ v, lse.masked_fill(empty[..., 0], -torch.inf)


def features(x, feature="elu1", order=1, projection=None, epsilon=0.0):
    """phi(x) [...,F]."""
    if feature == "elu1":
        return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))
    if feature == "relu":
        return torch.relu(x) + epsilon
    if feature == "exp":
        return torch.exp(x)
    if feature == "dpfp":
        r = torch.cat((torch.relu(x), torch.relu(-x)), -1)
        return torch.cat([r * torch.roll(r, i, -1) for i in range(1, order + 1)], -1)
    y = x / x.shape[-1] ** 0.25
    return torch.exp(y @ projection.T - (y ** 2).sum(-1, keepdim=True) / 2) / projection.shape[0] ** 0.5


def linear_attention(q, k, v, *, variant="linear", feature="elu1", feature_order=1, projection=None, guard=0.0,
                     feature_epsilon=0.0, unnormalised=False, prior=None,
                     shift=None, mix=None, mix_weight=None, heads=None, state=None, **mask):
    """O, and the state's true C and z after all keys."""
    phi = lambda x: features(x, feature, feature_order, projection, feature_epsilon)  # noqa: E731
    batch, n, s = q.shape[0], q.shape[2], k.shape[-2]
    if mix is not None:
        mix = mix if mix.ndim == 2 else mix.expand(heads, -1)
        x = mix[None, :, :, None, None] * phi(q)[:, None]  # [B,H,M,N,F]
        if "gfish" in variant:
            x = torch.relu(x)
            x = x if mix_weight is None else mix_weight[None, :, :, None, None] * x
        psi, letters = phi(k), "bmjf"
        count = mix.shape[0]
    else:
        k = k if variant == "mlk" else k[:, :, None]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        k = k if shift is None else k + shift[:, :, None]
        weights = torch.full((1, 1), 1 / k.shape[2], dtype=q.dtype) if prior is None else _components(prior, prior.ndim)
        psi = (weights.transpose(-1, -2) * phi(k)).sum(2)[:, :, None]  # [B,H,1,S,F]
        x, letters, count = phi(q)[:, :, None], "bhmjf", q.shape[1]
    v = v.repeat_interleave(count // v.shape[1], 1)
    w = torch.einsum(f"bhmif,{letters}->bhij", x, psi) * visible(n, s, batch, **mask)[:, None]
    above, below = w @ v, w.sum(-1, keepdim=True)
    keys = visible(1, s, batch, lengths=mask.get("lengths"))[:, 0]  # all keys of a batch
    psi = psi * keys.reshape(batch, *[1] * (psi.ndim - 3), s, 1)
    c = torch.einsum(f"{letters},bhje->bhmfe", psi, v)
    z = psi.sum(-2)
    if state is not None:
        c, z = c + state[0], z + state[1]
        above = above + torch.einsum("bhmif,bhmfe->bhie", x, state[0])
        below = below + torch.einsum(f"bhmif,{letters.replace('j', '')}->bhi", x, state[1])[..., None]
    rows = visible(n, 1, batch, lengths_q=mask.get("lengths_q"))
    below = torch.ones_like(below) if unnormalised else below + guard
    empty = (below == 0) | ~rows[:, None]
    return (above / below.masked_fill(empty, 1)).masked_fill(empty, 0), c, z
