//! The constants that a kernel of `kernels.cu` is given after its memory.

use crate::kernel::Kernel;

/// Whole numbers, then fractions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constants {
    pub(crate) longs: Vec<i64>,
    pub(crate) floats: Vec<f32>,
}

impl Constants {
    /// The constants of a kernel, from the bytes of each of what it reads and writes.
    pub(crate) fn new(kernel: &Kernel, reads: &[usize], writes: &[usize]) -> Self {
        let read = |i: usize| reads[i] / size_of::<f32>();
        let written = |i: usize| writes[i] / size_of::<f32>();
        let chosen = |i: usize| reads[i] / size_of::<i64>();
        let (longs, floats) = match kernel {
            Kernel::Embed | Kernel::Add | Kernel::AddShared => (vec![written(0)], vec![]),
            Kernel::RmsNorm { offset, epsilon } => (vec![written(0)], vec![*offset, *epsilon]),
            Kernel::Linear | Kernel::GatedUp => (vec![read(0), written(0)], vec![]),
            Kernel::NormRope {
                stride,
                rotary,
                theta,
                offset,
                epsilon,
            } => (
                vec![written(0) / read(1), read(1), *stride, *rotary],
                vec![*theta, *offset, *epsilon],
            ),
            Kernel::Append { layer } => (
                vec![read(0), layer.positions, layer.block, layer.first],
                vec![],
            ),
            Kernel::Attention { layer, heads } => {
                let longs = [heads.queries, heads.keys, heads.size];
                let place = [layer.positions, layer.block, layer.first];
                ([longs, place].concat(), vec![])
            }
            Kernel::Gate {
                start,
                stride,
                size,
            } => (vec![written(0), *start, *stride, *size], vec![]),
            Kernel::Route => (vec![read(0), written(1)], vec![]),
            Kernel::ExpertsUp => {
                let inner = written(0) / chosen(1);
                (vec![read(0), inner, chosen(1)], vec![])
            }
            Kernel::ExpertsDown => {
                let inner = read(0) / chosen(1);
                (vec![written(0), inner, chosen(1)], vec![])
            }
            Kernel::Convolve => (vec![read(0), read(1) / read(0)], vec![]),
            Kernel::Delta { heads } => {
                let sizes = [heads.keys, heads.values, heads.key_size, heads.value_size];
                (sizes.to_vec(), vec![])
            }
            Kernel::GatedNorm { epsilon } => (vec![written(0), read(2)], vec![*epsilon]),
            Kernel::Choose => (vec![read(0)], vec![]),
        };
        Self {
            longs: longs.into_iter().map(|long| long as i64).collect(),
            floats,
        }
    }
}
