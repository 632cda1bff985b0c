//! A convolutional network on batches of changing size.
//!
//! The network is a residual one of 50 layers, four bytes a number: a first
//! convolution, then 3, 4, 6 and 3 blocks of three convolutions whose maps have
//! 56, 28, 14 and 7 points a side. Its weights and the four vectors of each
//! normalization are loaded once, 267 blocks.
//!
//! Each of 400 requests is a batch of 1 to 32 images of 224 by 224, small batches
//! more often. A convolution allocates its output and a workspace, and frees the
//! workspace and then its input; a residual block keeps its input until the sum
//! at its end. Every tenth request has images half as large again, so that no
//! size fits what was there.

use device_memory::Tag;

use super::{Random, Trace};

const REQUESTS: usize = 400;
const BYTES: usize = 4;

/// Blocks, width of the inner convolutions, and points a side, by stage.
const STAGES: [(usize, usize, usize); 4] = [(3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)];

/// A convolution's output is this much wider at the end of a block.
const WIDENING: usize = 4;

/// Makes the trace: some 101,000 calls.
pub(crate) fn generate(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let mut trace = Trace::default();
    let weights = weights(&mut trace);
    for request in 0..REQUESTS {
        let most = random.between(1, 32);
        let batch = random.between(1, most);
        let scale = if request % 10 == 9 { 3 } else { 2 };
        infer(&mut trace, batch, scale);
    }
    trace.free_all(weights);
    trace
}

/// One convolution's weights and the vectors of its normalization.
fn convolution(trace: &mut Trace, kernel: usize, inputs: usize, outputs: usize) -> [usize; 5] {
    let vector = outputs * BYTES;
    let matrix = kernel * kernel * inputs * vector;
    [matrix, vector, vector, vector, vector].map(|size| trace.allocate(size, Tag::WEIGHTS))
}

fn weights(trace: &mut Trace) -> Vec<usize> {
    let mut blocks = Vec::new();
    blocks.extend(convolution(trace, 7, 3, 64));
    let mut inputs = 64;
    for (repeats, width, _) in STAGES {
        for repeat in 0..repeats {
            if repeat == 0 {
                blocks.extend(convolution(trace, 1, inputs, width * WIDENING));
            }
            blocks.extend(convolution(trace, 1, inputs, width));
            blocks.extend(convolution(trace, 3, width, width));
            blocks.extend(convolution(trace, 1, width, width * WIDENING));
            inputs = width * WIDENING;
        }
    }
    blocks.push(trace.allocate(inputs * 1000 * BYTES, Tag::WEIGHTS));
    blocks.push(trace.allocate(1000 * BYTES, Tag::WEIGHTS));
    blocks
}

/// The output of a convolution of `input`; its workspace comes and goes.
fn convolve(trace: &mut Trace, size: usize, workspace: usize) -> usize {
    let scratch = trace.allocate(workspace, Tag::SCRATCH);
    let output = trace.allocate(size, Tag::ACTIVATIONS);
    trace.free(scratch);
    output
}

/// One batch, on images of `scale` halves of the usual side.
fn infer(trace: &mut Trace, batch: usize, scale: usize) {
    let points = |side: usize| (side * scale / 2) * (side * scale / 2) * batch * BYTES;
    let image = trace.allocate(points(224) * 3, Tag::ACTIVATIONS);
    let first = convolve(trace, points(112) * 64, points(112) * 7);
    trace.free(image);
    let mut input = trace.allocate(points(56) * 64, Tag::ACTIVATIONS);
    trace.free(first);
    for (repeats, width, side) in STAGES {
        let (narrow, wide) = (points(side) * width, points(side) * width * WIDENING);
        for repeat in 0..repeats {
            let reduced = convolve(trace, narrow, narrow / 8);
            let spatial = convolve(trace, narrow, narrow / 2 * 9);
            trace.free(reduced);
            let widened = convolve(trace, wide, narrow / 8);
            trace.free(spatial);
            let skip = if repeat == 0 {
                let projected = convolve(trace, wide, narrow / 8);
                trace.free(input);
                projected
            } else {
                input
            };
            let sum = trace.allocate(wide, Tag::ACTIVATIONS);
            trace.free(skip);
            trace.free(widened);
            input = sum;
        }
    }
    let pooled = trace.allocate(2048 * batch * BYTES, Tag::ACTIVATIONS);
    trace.free(input);
    let classes = trace.allocate(1000 * batch * BYTES, Tag::ACTIVATIONS);
    trace.free(pooled);
    trace.free(classes);
}
