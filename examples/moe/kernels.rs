//! The kernels of the model, in plain Rust.
//!
//! Each computes one token. Weights are row-major, as in the file: a row is one
//! output. The same kernels in CUDA C are in `kernels.cu`, under the same names.

/// Constants of attention heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Heads of queries.
    pub(crate) queries: usize,
    /// Heads of keys and values; each serves `queries / keys` heads of queries.
    pub(crate) keys: usize,
    /// The length of a head.
    pub(crate) size: usize,
}

/// Where the keys and values of one layer of a sequence lie: in blocks of a pool
/// that all layers and sequences share.
///
/// A block has, for each layer, the keys and the values of its positions: a row
/// of `keys * size` floats each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paging<'a> {
    /// The block of each run of positions.
    pub(crate) table: &'a [i64],
    /// The positions in a block.
    pub(crate) positions: usize,
    /// The floats of a block.
    pub(crate) block: usize,
    /// The floats of a block that come before this layer's.
    pub(crate) first: usize,
}

impl Paging<'_> {
    /// The first float of a position, whose keys and values are `floats` floats.
    fn start(&self, position: usize, floats: usize) -> usize {
        let block = self.table[position / self.positions] as usize;
        block * self.block + self.first + position % self.positions * floats
    }
}

/// The row of `table` for a token.
pub(crate) fn embed(token: i64, table: &[f32], out: &mut [f32]) {
    let start = token as usize * out.len();
    out.copy_from_slice(&table[start..start + out.len()]);
}

/// Scales `x` to a mean square of 1, then by `offset + weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], offset: f32, epsilon: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * (offset + weight);
    }
}

/// One product of a row of `weight` with `x` for each output.
pub(crate) fn linear(x: &[f32], weight: &[f32], out: &mut [f32]) {
    for (out, row) in out.iter_mut().zip(weight.chunks_exact(x.len())) {
        *out = dot(row, x);
    }
}

/// Normalizes each head of `x` and turns its first `rotary` values by the
/// position. Heads lie `stride` apart in `x`.
#[expect(clippy::too_many_arguments, reason = "a kernel takes what it takes")]
pub(crate) fn norm_rope(
    x: &[f32],
    weight: &[f32],
    position: i64,
    stride: usize,
    rotary: usize,
    theta: f32,
    (offset, epsilon): (f32, f32),
    out: &mut [f32],
) {
    let size = weight.len();
    let half = rotary / 2;
    for (head, out) in out.chunks_exact_mut(size).enumerate() {
        rms_norm(&x[head * stride..][..size], weight, offset, epsilon, out);
        for i in 0..half {
            let frequency = 1.0 / theta.powf(2.0 * i as f32 / rotary as f32);
            let (sin, cos) = (position as f32 * frequency).sin_cos();
            let (a, b) = (out[i], out[i + half]);
            out[i] = a * cos - b * sin;
            out[i + half] = b * cos + a * sin;
        }
    }
}

/// Keeps the keys and values of a position.
pub(crate) fn append(
    keys: &[f32],
    values: &[f32],
    position: i64,
    paging: Paging<'_>,
    pool: &mut [f32],
) {
    let floats = 2 * keys.len();
    let start = paging.start(position as usize, floats);
    pool[start..start + keys.len()].copy_from_slice(keys);
    pool[start + keys.len()..start + floats].copy_from_slice(values);
}

/// Attention of `q` over all positions up to and with `position`.
pub(crate) fn attention(
    q: &[f32],
    pool: &[f32],
    position: i64,
    paging: Paging<'_>,
    heads: Heads,
    out: &mut [f32],
) {
    let Heads {
        queries,
        keys,
        size,
    } = heads;
    let row = keys * size;
    let scale = 1.0 / (size as f32).sqrt();
    for (head, (q, out)) in q
        .chunks_exact(size)
        .zip(out.chunks_exact_mut(size))
        .enumerate()
    {
        let at = head / (queries / keys) * size;
        let key = |position| &pool[paging.start(position, 2 * row) + at..][..size];
        let value = |position| &pool[paging.start(position, 2 * row) + row + at..][..size];
        let positions = 0..=position as usize;
        let mut weights: Vec<f32> = positions.map(|p| dot(q, key(p)) * scale).collect();
        softmax(&mut weights);
        out.fill(0.0);
        for (position, weight) in weights.iter().enumerate() {
            add_scaled(value(position), *weight, out);
        }
    }
}

/// `x` times the sigmoid of its gate. Gates lie `stride` apart by head of `size`,
/// from `start`.
pub(crate) fn gate(
    x: &[f32],
    gates: &[f32],
    start: usize,
    stride: usize,
    size: usize,
    out: &mut [f32],
) {
    for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
        let gate = gates[i / size * stride + start + i % size];
        *out = x * sigmoid(gate);
    }
}

/// The sum.
pub(crate) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

/// The likeliest experts and their shares, which sum to 1.
pub(crate) fn route(logits: &[f32], experts: &mut [i64], shares: &mut [f32]) {
    let mut weights = logits.to_vec();
    softmax(&mut weights);
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    let total: f32 = order[..experts.len()].iter().map(|&i| weights[i]).sum();
    for ((expert, share), &i) in experts.iter_mut().zip(shares).zip(&order) {
        *expert = i as i64;
        *share = weights[i] / total;
    }
}

/// The hidden values of the chosen experts, one after the other: the gate rows
/// come before the up rows in the weights of an expert.
pub(crate) fn experts_up(x: &[f32], experts: &[i64], weight: &[f32], out: &mut [f32]) {
    let size = out.len() / experts.len();
    let floats = 2 * size * x.len();
    for (expert, out) in experts.iter().zip(out.chunks_exact_mut(size)) {
        let weight = &weight[*expert as usize * floats..][..floats];
        let (gates, ups) = weight.split_at(floats / 2);
        let rows = gates.chunks_exact(x.len()).zip(ups.chunks_exact(x.len()));
        for (out, (gate, up)) in out.iter_mut().zip(rows) {
            *out = silu(dot(gate, x)) * dot(up, x);
        }
    }
}

/// The outputs of the chosen experts, added by their shares.
pub(crate) fn experts_down(
    hidden: &[f32],
    experts: &[i64],
    shares: &[f32],
    weight: &[f32],
    out: &mut [f32],
) {
    let size = hidden.len() / experts.len();
    out.fill(0.0);
    for ((expert, share), hidden) in experts.iter().zip(shares).zip(hidden.chunks_exact(size)) {
        let floats = out.len() * size;
        let weight = &weight[*expert as usize * floats..][..floats];
        for (out, row) in out.iter_mut().zip(weight.chunks_exact(size)) {
            *out += share * dot(row, hidden);
        }
    }
}

/// The hidden values of one expert whose gate and up weights are apart.
pub(crate) fn gated_up(x: &[f32], gates: &[f32], ups: &[f32], out: &mut [f32]) {
    let rows = gates.chunks_exact(x.len()).zip(ups.chunks_exact(x.len()));
    for (out, (gate, up)) in out.iter_mut().zip(rows) {
        *out = silu(dot(gate, x)) * dot(up, x);
    }
}

/// Adds to `routed` what the shared expert gives, by the sigmoid of its gate.
pub(crate) fn add_shared(routed: &[f32], shared: &[f32], x: &[f32], gate: &[f32], out: &mut [f32]) {
    let share = sigmoid(dot(gate, x));
    for ((out, routed), shared) in out.iter_mut().zip(routed).zip(shared) {
        *out = routed + share * shared;
    }
}

/// A causal convolution along time, one filter a channel, with SiLU. The last
/// inputs are kept in `state`, oldest first, `width - 1` a channel.
pub(crate) fn convolve(x: &[f32], weight: &[f32], state: &mut [f32], out: &mut [f32]) {
    let width = weight.len() / x.len();
    let states = state.chunks_exact_mut(width - 1);
    for (((out, x), weight), state) in out
        .iter_mut()
        .zip(x)
        .zip(weight.chunks_exact(width))
        .zip(states)
    {
        let (last, earlier) = weight.split_last().expect("a filter has a width");
        *out = silu(dot(earlier, state) + last * x);
        state.rotate_left(1);
        state[width - 2] = *x;
    }
}

/// The sizes of linear attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaHeads {
    /// Heads of queries and keys.
    pub(crate) keys: usize,
    /// Heads of values; `values / keys` of them share a head of keys.
    pub(crate) values: usize,
    /// The length of a head of keys.
    pub(crate) key_size: usize,
    /// The length of a head of values.
    pub(crate) value_size: usize,
}

/// One step of the gated delta rule. `qkv` is queries, keys, values; `state` is a
/// matrix of keys by values for each head of values.
#[expect(clippy::too_many_arguments, reason = "a kernel takes what it takes")]
pub(crate) fn delta(
    qkv: &[f32],
    a: &[f32],
    b: &[f32],
    a_log: &[f32],
    dt_bias: &[f32],
    heads: DeltaHeads,
    state: &mut [f32],
    out: &mut [f32],
) {
    let DeltaHeads {
        keys,
        values,
        key_size,
        value_size,
    } = heads;
    let (q, kv) = qkv.split_at(keys * key_size);
    let (k, v) = kv.split_at(keys * key_size);
    let states = state.chunks_exact_mut(key_size * value_size);
    for (head, (state, out)) in states.zip(out.chunks_exact_mut(value_size)).enumerate() {
        let shared = head / (values / keys) * key_size;
        let q = unit(&q[shared..][..key_size]);
        let k = unit(&k[shared..][..key_size]);
        let v = &v[head * value_size..][..value_size];
        let decay = (-a_log[head].exp() * softplus(a[head] + dt_bias[head])).exp();
        let beta = sigmoid(b[head]);
        let scale = 1.0 / (key_size as f32).sqrt();

        // Summed in double precision, as in `dot`.
        let mut remembered = vec![0.0; value_size];
        for (row, k) in state.chunks_exact_mut(value_size).zip(&k) {
            row.iter_mut().for_each(|value| *value *= decay);
            add_products(row, *k, &mut remembered);
        }
        let change: Vec<f32> = v
            .iter()
            .zip(&remembered)
            .map(|(v, m)| (f64::from(*v) - m) as f32 * beta)
            .collect();
        let mut sums = vec![0.0; value_size];
        for ((row, k), q) in state.chunks_exact_mut(value_size).zip(&k).zip(&q) {
            add_scaled(&change, *k, row);
            add_products(row, q * scale, &mut sums);
        }
        for (out, sum) in out.iter_mut().zip(&sums) {
            *out = *sum as f32;
        }
    }
}

/// Normalizes each head of `x`, then multiplies by the SiLU of its gate.
pub(crate) fn gated_norm(x: &[f32], gates: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let size = weight.len();
    let heads = x.chunks_exact(size).zip(gates.chunks_exact(size));
    for (out, (x, gates)) in out.chunks_exact_mut(size).zip(heads) {
        rms_norm(x, weight, 0.0, epsilon, out);
        for (out, gate) in out.iter_mut().zip(gates) {
            *out *= silu(*gate);
        }
    }
}

/// The token of the largest logit, the first if there are two, and the position
/// after this one.
pub(crate) fn choose(logits: &[f32], token: &mut i64, position: &mut i64) {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    *token = best as i64;
    *position += 1;
}

/// Summed in double precision: of the rounding errors on the way to a logit, the
/// largest is that of long sums.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum::<f64>() as f32
}

fn add_scaled(from: &[f32], scale: f32, to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += scale * from;
    }
}

fn add_products(from: &[f32], scale: f32, to: &mut [f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += f64::from(scale) * f64::from(*from);
    }
}

fn inverse_rms(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt()
}

/// `x` scaled to a length of 1.
fn unit(x: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x * scale).collect()
}

fn softmax(x: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let total: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= total);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
