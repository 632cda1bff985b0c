//! Random graphs, and random options for them.
//!
//! A graph is made from a list of choices, so that a failing one can be made
//! smaller.

use device_memory::graph::{Graph, GraphBuilder, MethodOptions, Op, Output, Skip, ValueId};
use device_memory::{Device, DeviceType, ScalarType, TensorSpec};

pub(crate) const CUDA_0: Device = Device::new(DeviceType::Cuda, 0);
pub(crate) const CUDA_1: Device = Device::new(DeviceType::Cuda, 1);

pub(crate) fn bytes(len: usize, device: Device) -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Byte, &[len], device).unwrap()
}

fn truth() -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Bool, &[1], Device::CPU).unwrap()
}

/// Numbers that decide; once they are used up, all is 0.
pub(crate) struct Choices<'a>(std::slice::Iter<'a, u16>);

impl<'a> Choices<'a> {
    pub(crate) fn new(numbers: &'a [u16]) -> Self {
        Self(numbers.iter())
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % limit
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

/// A value that may be used, with the value whose bytes it is in.
#[derive(Clone, Copy)]
struct Usable {
    id: ValueId,
    root: ValueId,
    size: usize,
    writable: bool,
}

struct Maker<'c, 'n> {
    choices: &'c mut Choices<'n>,
    builder: GraphBuilder,
    usable: Vec<Usable>,
}

/// A valid graph.
pub(crate) fn random(choices: &mut Choices<'_>) -> Graph {
    let mut maker = Maker {
        choices,
        builder: GraphBuilder::new("forward"),
        usable: Vec::new(),
    };
    for index in 0..1 + maker.choices.below(3) {
        let size = maker.size();
        let device = maker.device_of_start();
        let id = maker
            .builder
            .input(format!("in{index}"), bytes(size, device));
        maker.add(id, size, false);
    }
    for index in 0..maker.choices.below(3) {
        let size = maker.size();
        let device = maker.device_of_start();
        let id = maker
            .builder
            .mutable_buffer(format!("state{index}"), bytes(size, device));
        maker.add(id, size, true);
    }
    while !maker.choices.is_empty() {
        maker.node(2);
    }
    maker.finish()
}

impl Maker<'_, '_> {
    fn size(&mut self) -> usize {
        [4, 1, 8, 3, 0][self.choices.below(5)]
    }

    fn device_of_start(&mut self) -> Device {
        [Device::CPU, Device::CPU, CUDA_0][self.choices.below(3)]
    }

    fn target(&mut self) -> Option<Device> {
        [
            Some(CUDA_0),
            Some(CUDA_1),
            None,
            Some(Device::CPU),
            Some(CUDA_0),
        ][self.choices.below(5)]
    }

    fn add(&mut self, id: ValueId, size: usize, writable: bool) {
        self.usable.push(Usable {
            id,
            root: id,
            size,
            writable,
        });
    }

    fn pick(&mut self) -> Usable {
        let index = self.choices.below(self.usable.len());
        self.usable[self.usable.len() - 1 - index]
    }

    fn pick_some(&mut self, limit: usize) -> Vec<Usable> {
        let count = self.choices.below(limit);
        (0..count).map(|_| self.pick()).collect()
    }

    fn node(&mut self, depth: usize) {
        match self.choices.below(10) {
            0..4 => self.compute(),
            4 | 5 => self.write_in_place(),
            6 => self.view(),
            7 => self.copy(),
            8 if depth > 0 => self.branch(depth),
            9 if depth > 0 => self.repeat(depth),
            _ => self.compute(),
        }
    }

    fn op(&mut self) -> Op {
        match self.choices.below(3) {
            0 => Op::Kernel,
            _ => Op::Delegate {
                target: self.target(),
            },
        }
    }

    fn compute(&mut self) {
        let inputs: Vec<ValueId> = self.pick_some(4).iter().map(|value| value.id).collect();
        let op = self.op();
        let sizes = [self.size(), self.size()];
        let outputs = sizes.map(|size| Output::new(bytes(size, Device::CPU)));
        let made = self.builder.node("mix:0", op, &inputs, outputs);
        for (id, size) in made.into_iter().zip(sizes) {
            self.add(id, size, true);
        }
    }

    fn write_in_place(&mut self) {
        let base = self.pick();
        if !base.writable {
            return self.compute();
        }
        let size = base.size - base.size.min(self.choices.below(2));
        let offset = self.choices.below(base.size - size + 1);
        let inputs = self.pick_some(3);
        let inputs = inputs.iter().filter(|input| input.root != base.root);
        let inputs: Vec<ValueId> = inputs.map(|input| input.id).collect();
        let op = self.op();
        let output = Output::new(bytes(size, Device::CPU)).in_place_of(base.id, offset);
        let [id] = self.builder.node("mix:1", op, &inputs, [output]);
        self.usable.retain(|value| value.root != base.root);
        self.usable.push(Usable { id, size, ..base });
        if self.usable.is_empty() {
            self.compute();
        }
    }

    fn view(&mut self) {
        let base = self.pick();
        let size = base.size - base.size.min(self.choices.below(3));
        let offset = self.choices.below(base.size - size + 1);
        let spec = bytes(size, Device::CPU);
        let id = self.builder.view("view", base.id, offset, spec);
        self.usable.push(Usable { id, size, ..base });
    }

    fn copy(&mut self) {
        let source = self.pick();
        let device = [CUDA_0, Device::CPU, CUDA_1][self.choices.below(3)];
        let id = self
            .builder
            .copy("copy", source.id, bytes(source.size, device));
        self.add(id, source.size, true);
    }

    /// A graph that takes values of these sizes and gives others, or the same ones.
    fn inner(&mut self, name: &str, takes: &[TensorSpec], gives: &[usize], depth: usize) -> Graph {
        let mut maker = Maker {
            choices: self.choices,
            builder: GraphBuilder::new(name),
            usable: Vec::new(),
        };
        for (index, spec) in takes.iter().enumerate() {
            let id = maker.builder.input(format!("in{index}"), spec.clone());
            maker.add(id, spec.size_in_bytes(), false);
        }
        for _ in 0..maker.choices.below(4) {
            maker.node(depth - 1);
        }
        let mut outputs = Vec::new();
        for &size in gives {
            let known = maker.usable.iter().filter(|value| value.size == size);
            let known: Vec<ValueId> = known.map(|value| value.id).collect();
            if known.is_empty() || maker.choices.below(2) == 0 {
                let inputs: Vec<ValueId> = maker.pick_some(3).iter().map(|v| v.id).collect();
                let op = maker.op();
                let output = Output::new(bytes(size, Device::CPU));
                let [id] = maker.builder.node("mix:0", op, &inputs, [output]);
                maker.add(id, size, true);
                outputs.push(id);
            } else {
                outputs.push(known[maker.choices.below(known.len())]);
            }
        }
        maker.builder.finish(&outputs).unwrap()
    }

    fn branch(&mut self, depth: usize) {
        let operands = self.pick_some(3);
        let operands = if operands.is_empty() {
            vec![self.pick()]
        } else {
            operands
        };
        let ids: Vec<ValueId> = operands.iter().map(|value| value.id).collect();
        let takes: Vec<TensorSpec> = operands
            .iter()
            .map(|value| bytes(value.size, Device::CPU))
            .collect();
        let sizes = [self.size(), self.size()];
        let [choice] = self.builder.kernel("choose", &ids, [truth().into()]);
        let graphs = (
            self.inner("then", &takes, &sizes, depth),
            self.inner("otherwise", &takes, &sizes, depth),
        );
        let inputs: Vec<ValueId> = [choice].into_iter().chain(ids).collect();
        let outputs = sizes.map(|size| Output::new(bytes(size, Device::CPU)));
        let made = self.builder.branch("branch", &inputs, graphs, outputs);
        for (id, size) in made.into_iter().zip(sizes) {
            self.add(id, size, true);
        }
    }

    /// A loop over a counter and two more values, which may change places.
    fn repeat(&mut self, depth: usize) {
        let (a, b) = (self.pick(), self.pick());
        let sizes = [1, a.size, b.size];
        let specs = sizes.map(|size| bytes(size, Device::CPU));
        let [counter] = self
            .builder
            .kernel("rounds", &[a.id], [specs[0].clone().into()]);

        let mut condition = GraphBuilder::new("condition");
        let inputs =
            [0, 1, 2].map(|index| condition.input(format!("in{index}"), specs[index].clone()));
        let [go_on] = condition.kernel("positive", &inputs[..1], [truth().into()]);
        let condition = condition.finish(&[go_on]).unwrap();

        // The random part makes the two values; the counter counts down beside it.
        let rest = self.inner("rest", &specs[1..], &sizes[1..], depth);
        let mut body = GraphBuilder::new("body");
        let inputs = [0, 1, 2].map(|index| body.input(format!("in{index}"), specs[index].clone()));
        let [next] = body.kernel("decrement", &inputs[..1], [specs[0].clone().into()]);
        let outputs = if a.size == b.size && self.choices.below(2) == 0 {
            [next, inputs[2], inputs[1]]
        } else {
            let [choice] = body.kernel("choose", &inputs, [truth().into()]);
            let graphs = (rest.clone(), rest);
            let operands = [choice, inputs[1], inputs[2]];
            let made = [specs[1].clone().into(), specs[2].clone().into()];
            let [x, y] = body.branch("rest", &operands, graphs, made);
            [next, x, y]
        };
        let body = body.finish(&outputs).unwrap();

        let inputs = [counter, a.id, b.id];
        let made = self
            .builder
            .repeat("loop", &inputs, condition, body, specs.map(Output::new));
        for (id, size) in made.into_iter().zip(sizes) {
            self.add(id, size, true);
        }
    }

    fn finish(self) -> Graph {
        let count = 1 + self.choices.below(3);
        let mut outputs: Vec<ValueId> = Vec::new();
        for value in self.usable.iter().rev().take(count) {
            outputs.push(value.id);
        }
        self.builder.finish(&outputs).unwrap()
    }
}

/// One option for each bit.
pub(crate) fn options(bits: u8) -> MethodOptions {
    let skip = |bit: u8| {
        if bits & (1 << bit) == 0 {
            Skip::None
        } else {
            Skip::All
        }
    };
    MethodOptions {
        resident_inputs: skip(0),
        resident_outputs: skip(1),
        resident_buffers: skip(2),
        direct_copies: bits & 8 != 0,
        shared_copies: bits & 16 != 0,
    }
}
