//! Which kernel a node of the graph is, and its constants.
//!
//! A kernel is given what it reads, then what it writes, in the order of the node,
//! then its constants: whole numbers, then fractions. What is written over starts
//! with the bytes that it has.

use crate::kernels::{self, DeltaHeads, Heads, Paging};

/// The part of a layer in the blocks of the pool; see [`Paging`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedLayer {
    /// The positions in a block.
    pub(crate) positions: usize,
    /// The floats of a block.
    pub(crate) block: usize,
    /// The floats of a block that come before this layer's.
    pub(crate) first: usize,
}

impl PagedLayer {
    fn with(self, table: &[i64]) -> Paging<'_> {
        let Self {
            positions,
            block,
            first,
        } = self;
        Paging {
            table,
            positions,
            block,
            first,
        }
    }
}

/// A kernel with its constants. What it reads and writes is the node's.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// Token and table in, row out.
    Embed,
    /// Input and weights in.
    RmsNorm { offset: f32, epsilon: f32 },
    /// Input and weights in.
    Linear,
    /// Heads, weights and position in.
    NormRope {
        stride: usize,
        rotary: usize,
        theta: f32,
        offset: f32,
        epsilon: f32,
    },
    /// Keys, values, position and table in; a block of the pool is written over.
    Append { layer: PagedLayer },
    /// Queries, position and table in, then the blocks of the pool.
    Attention { layer: PagedLayer, heads: Heads },
    /// Input and gates in.
    Gate {
        start: usize,
        stride: usize,
        size: usize,
    },
    /// Two inputs.
    Add,
    /// Logits in, experts and shares out.
    Route,
    /// Input, experts and weights in.
    ExpertsUp,
    /// Hidden values, experts, shares and weights in.
    ExpertsDown,
    /// Input, gate weights and up weights in.
    GatedUp,
    /// Routed and shared outputs, input and gate weights in.
    AddShared,
    /// Input and weights in; the state is written over.
    Convolve,
    /// Queries, keys and values, a, b, A and bias in; the state is written over.
    Delta { heads: DeltaHeads },
    /// Input, gates and weights in.
    GatedNorm { epsilon: f32 },
    /// Logits in; token and position are written over.
    Choose,
}

impl Kernel {
    /// Its name in `kernels.cu`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Linear => "linear",
            Self::NormRope { .. } => "norm_rope",
            Self::Append { .. } => "append",
            Self::Attention { .. } => "attention",
            Self::Gate { .. } => "gate",
            Self::Add => "add",
            Self::Route => "route",
            Self::ExpertsUp => "experts_up",
            Self::ExpertsDown => "experts_down",
            Self::GatedUp => "gated_up",
            Self::AddShared => "add_shared",
            Self::Convolve => "convolve",
            Self::Delta { .. } => "delta",
            Self::GatedNorm { .. } => "gated_norm",
            Self::Choose => "choose",
        }
    }

    /// Whether it reads the blocks of the sequence, after its inputs.
    pub(crate) fn reads_blocks(&self) -> bool {
        matches!(self, Self::Attention { .. })
    }

    /// Whether it writes over the block of the position.
    pub(crate) fn writes_block(&self) -> bool {
        matches!(self, Self::Append { .. })
    }

    /// Computes on the host, over the bytes of what is read and of what is written.
    /// `blocks` are the numbers of the blocks that are the last of what is read, or
    /// what is written.
    pub(crate) fn run(&self, reads: &[Vec<u8>], writes: &mut [Vec<u8>], blocks: &[usize]) {
        let f = |i: usize| floats(&reads[i]);
        let n = |i: usize| longs(&reads[i]);
        match self {
            Self::Embed => with(writes, |[out]| kernels::embed(n(0)[0], &f(1), out)),
            Self::RmsNorm { offset, epsilon } => {
                with(writes, |[out]| {
                    kernels::rms_norm(&f(0), &f(1), *offset, *epsilon, out)
                });
            }
            Self::Linear => with(writes, |[out]| kernels::linear(&f(0), &f(1), out)),
            Self::NormRope {
                stride,
                rotary,
                theta,
                offset,
                epsilon,
            } => with(writes, |[out]| {
                let norm = (*offset, *epsilon);
                kernels::norm_rope(&f(0), &f(1), n(2)[0], *stride, *rotary, *theta, norm, out);
            }),
            Self::Append { layer } => {
                let mut pool = floats(&spread(writes, blocks));
                kernels::append(&f(0), &f(1), n(2)[0], layer.with(&n(3)), &mut pool);
                for (bytes, number) in writes.iter_mut().zip(blocks) {
                    *bytes = float_bytes(&pool[number * layer.block..][..layer.block]);
                }
            }
            Self::Attention { layer, heads } => with(writes, |[out]| {
                let pool = floats(&spread(&reads[3..], blocks));
                kernels::attention(&f(0), &pool, n(1)[0], layer.with(&n(2)), *heads, out);
            }),
            Self::Gate {
                start,
                stride,
                size,
            } => {
                with(writes, |[out]| {
                    kernels::gate(&f(0), &f(1), *start, *stride, *size, out)
                });
            }
            Self::Add => with(writes, |[out]| kernels::add(&f(0), &f(1), out)),
            Self::Route => {
                let [experts, shares] = writes else {
                    panic!("route writes two")
                };
                let (mut chosen, mut parts) = (longs(experts), floats(shares));
                kernels::route(&f(0), &mut chosen, &mut parts);
                (*experts, *shares) = (long_bytes(&chosen), float_bytes(&parts));
            }
            Self::ExpertsUp => with(writes, |[out]| {
                kernels::experts_up(&f(0), &n(1), &f(2), out)
            }),
            Self::ExpertsDown => with(writes, |[out]| {
                kernels::experts_down(&f(0), &n(1), &f(2), &f(3), out);
            }),
            Self::GatedUp => with(writes, |[out]| kernels::gated_up(&f(0), &f(1), &f(2), out)),
            Self::AddShared => with(writes, |[out]| {
                kernels::add_shared(&f(0), &f(1), &f(2), &f(3), out);
            }),
            Self::Convolve => with(writes, |[out, state]| {
                kernels::convolve(&f(0), &f(1), state, out);
            }),
            Self::Delta { heads } => with(writes, |[out, state]| {
                kernels::delta(&f(0), &f(1), &f(2), &f(3), &f(4), *heads, state, out);
            }),
            Self::GatedNorm { epsilon } => {
                with(writes, |[out]| {
                    kernels::gated_norm(&f(0), &f(1), &f(2), *epsilon, out)
                });
            }
            Self::Choose => {
                let [token, position] = writes else {
                    panic!("choose writes two")
                };
                let (mut chosen, mut next) = (longs(token), longs(position));
                kernels::choose(&f(0), &mut chosen[0], &mut next[0]);
                (*token, *position) = (long_bytes(&chosen), long_bytes(&next));
            }
        }
    }
}

/// The pool with nothing in it but blocks of these numbers. Who reads another one
/// gets no numbers: all bits set are none.
pub(crate) fn spread(blocks: &[Vec<u8>], numbers: &[usize]) -> Vec<u8> {
    let end = numbers.iter().max().map_or(0, |last| last + 1);
    let size = blocks.first().map_or(0, Vec::len);
    let mut pool = vec![0xff; end * size];
    for (bytes, number) in blocks.iter().zip(numbers) {
        pool[number * size..][..size].copy_from_slice(bytes);
    }
    pool
}

/// Lends all that is written as floats, and puts it back as bytes.
fn with<const N: usize>(writes: &mut [Vec<u8>], compute: impl FnOnce([&mut Vec<f32>; N])) {
    let mut values: [Vec<f32>; N] = std::array::from_fn(|i| floats(&writes[i]));
    compute(values.each_mut());
    for (bytes, values) in writes.iter_mut().zip(&values) {
        *bytes = float_bytes(values);
    }
}

/// The floats in little-endian bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

/// The 64-bit integers in little-endian bytes.
pub(crate) fn longs(bytes: &[u8]) -> Vec<i64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|word| i64::from_le_bytes(std::array::from_fn(|i| word[i])))
        .collect()
}

/// Little-endian bytes of floats.
pub(crate) fn float_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Little-endian bytes of 64-bit integers.
pub(crate) fn long_bytes(values: &[i64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
