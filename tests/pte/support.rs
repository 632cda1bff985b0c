//! Files, and a walk over everything a program offers.

use std::path::{Path, PathBuf};

use device_memory::pte::{Method, Program};
use serde_json::Value;

/// The folder of the real programs.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pte")
}

/// The bytes of a file of that folder.
pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A JSON file of that folder.
pub(crate) fn json(name: &str) -> Value {
    serde_json::from_slice(&bytes(name)).unwrap()
}

/// The names of all real programs, without the extension.
pub(crate) fn programs() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            Some(name.strip_suffix(".pte")?.to_owned())
        })
        .collect();
    names.sort();
    assert_eq!(names.len(), 30);
    names
}

/// Calls every accessor, and returns a number that depends on all of them.
pub(crate) fn visit(program: &Program<'_>) -> usize {
    let mut seen = format!("{:?}{:?}", program.header(), program.version()).len();
    for warning in program.warnings() {
        seen += warning.to_string().len();
    }
    seen += program.warnings_left_out();
    seen += program
        .segments()
        .map(|s| usize::from(s.size > 0))
        .sum::<usize>();
    for part in program
        .constant_segment()
        .into_iter()
        .chain(program.mutable_data_segments())
    {
        seen += part.offsets().len() + part.segment_index() as usize;
    }
    seen += program
        .named_data()
        .map(|(name, _)| name.len())
        .sum::<usize>();
    for method in program.methods() {
        assert!(program.method(method.name()).is_ok());
        seen += visit_method(method);
    }
    assert!(program.method("no such method").is_err() || program.methods().len() > 1);
    seen
}

fn visit_method(method: &Method<'_>) -> usize {
    let count = method.num_memory_planned_buffers();
    let mut seen = method.num_values() + method.num_instructions();
    for index in 0..count {
        seen += usize::from(method.memory_planned_buffer_size(index).unwrap() > 0);
        seen += usize::from(method.memory_planned_buffer_device(index).unwrap().is_cpu());
    }
    assert!(method.memory_planned_buffer_size(count).is_err());
    assert!(method.memory_planned_buffer_device(usize::MAX).is_err());
    seen += method.non_const_buffer_sizes().len();
    seen += method.non_const_buffer_device().map_or(0, Iterator::count);
    for tensor in method.planned_tensors() {
        let end = tensor.offset() + tensor.nbytes();
        let buffer = &method.buffers()[tensor.buffer_index() as usize];
        assert!(end <= buffer.size);
        assert_eq!(tensor.placement().size, tensor.nbytes());
        assert_eq!(tensor.memory_id(), tensor.buffer_index() + 1);
    }
    let planned = method.planned_tensors().map(|tensor| *tensor);
    let others = method.constant_tensors().chain(method.runtime_tensors());
    for tensor in planned.chain(others) {
        let spec = tensor.spec().unwrap();
        assert_eq!(spec.size_in_bytes(), tensor.nbytes());
        assert!(spec.sizes().iter().copied().eq(tensor.sizes()));
        assert_eq!(tensor.dim_order().len(), tensor.sizes().len());
        seen += tensor.name().map_or(0, str::len) + tensor.data_buffer_idx() as usize;
        seen += tensor.location().name().len();
    }
    for (value, kind) in method.inputs().chain(method.outputs()) {
        assert_eq!(method.value_kind(value), Some(kind));
        seen += kind.name().len();
    }
    for operator in method.operators() {
        seen += operator.to_string().len();
    }
    for delegate in method.delegates() {
        seen += delegate.id().len() + delegate.index() as usize + delegate.location().name().len();
        for spec in delegate.compile_specs() {
            seen += spec.key.len() + spec.value.len();
        }
    }
    let plan = method.plan().unwrap();
    assert_eq!(plan.placements().len(), method.planned_tensors().count());
    for overwrite in method.overwrites().into_iter().flatten() {
        assert_ne!(overwrite.value, overwrite.by);
        seen += overwrite.to_string().len();
    }
    seen
}

/// A program whose fields can be found and overwritten.
pub(crate) struct Patch {
    /// The file.
    pub(crate) bytes: Vec<u8>,
}

/// The code of an instruction that moves a value.
pub(crate) const MOVE: u8 = 3;

/// The code of an instruction that jumps.
pub(crate) const JUMP_FALSE: u8 = 4;

/// Slots of the schema's tables.
pub(crate) mod slot {
    pub(crate) const PROGRAM_EXECUTION_PLAN: usize = 1;
    pub(crate) const PLAN_VALUES: usize = 2;
    pub(crate) const PLAN_CHAINS: usize = 5;
    pub(crate) const PLAN_BUFFER_SIZES: usize = 8;
    pub(crate) const PLAN_BUFFER_DEVICE: usize = 9;
    pub(crate) const CHAIN_INSTRUCTIONS: usize = 2;
    pub(crate) const UNION_TYPE: usize = 0;
    pub(crate) const UNION_VALUE: usize = 1;
    pub(crate) const LIST_ITEMS: usize = 0;
    pub(crate) const TENSOR_ALLOCATION: usize = 6;
    pub(crate) const ALLOCATION_OFFSET: usize = 1;
    pub(crate) const CALL_ARGS: usize = 1;
    pub(crate) const DEVICE_BUFFER_IDX: usize = 0;
}

impl Patch {
    /// The real program called `name`.
    pub(crate) fn of(name: &str) -> Self {
        Self {
            bytes: bytes(&format!("{name}.pte")),
        }
    }

    /// The 32-bit word at `position`.
    pub(crate) fn word(&self, position: usize) -> u32 {
        u32::from_le_bytes(self.bytes[position..position + 4].try_into().unwrap())
    }

    /// Writes the 32-bit word at `position`.
    pub(crate) fn set(&mut self, position: usize, word: u32) {
        self.bytes[position..position + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// The table or vector that the offset at `position` leads to.
    pub(crate) fn follow(&self, position: usize) -> usize {
        position + self.word(position) as usize
    }

    /// Where the field in `slot` of `table` is.
    pub(crate) fn field(&self, table: usize, slot: usize) -> Option<usize> {
        let back = self.word(table).cast_signed() as isize;
        let vtable = table.checked_add_signed(-back).unwrap();
        let entry = vtable + 4 + 2 * slot;
        let half = |position: usize| {
            usize::from(u16::from_le_bytes(
                self.bytes[position..position + 2].try_into().unwrap(),
            ))
        };
        if entry + 2 > vtable + half(vtable) {
            return None;
        }
        Some(half(entry))
            .filter(|&offset| offset != 0)
            .map(|offset| table + offset)
    }

    /// What the offset in `slot` of `table` leads to.
    pub(crate) fn child(&self, table: usize, slot: usize) -> usize {
        self.follow(self.field(table, slot).unwrap())
    }

    /// The table that element `index` of `vector` leads to.
    pub(crate) fn element(&self, vector: usize, index: usize) -> usize {
        assert!(index < self.word(vector) as usize);
        self.follow(vector + 4 + 4 * index)
    }

    /// The table of the first method.
    pub(crate) fn plan(&self) -> usize {
        let plans = self.child(self.follow(0), slot::PROGRAM_EXECUTION_PLAN);
        self.element(plans, 0)
    }

    /// The table of a value.
    pub(crate) fn value(&self, value: u32) -> usize {
        let values = self.child(self.plan(), slot::PLAN_VALUES);
        self.child(self.element(values, value as usize), slot::UNION_VALUE)
    }

    /// Where the offset of a planned tensor is, unless it is 0 and left out.
    pub(crate) fn offset(&self, value: u32) -> Option<usize> {
        let allocation = self.child(self.value(value), slot::TENSOR_ALLOCATION);
        self.field(allocation, slot::ALLOCATION_OFFSET)
    }

    /// The table of an instruction of the first chain.
    pub(crate) fn instruction(&self, index: usize) -> usize {
        let chain = self.element(self.child(self.plan(), slot::PLAN_CHAINS), 0);
        self.element(self.child(chain, slot::CHAIN_INSTRUCTIONS), index)
    }

    /// How many instructions of the first chain have `value` as an argument.
    pub(crate) fn uses(&self, value: u32, instructions: usize) -> usize {
        let is_used = |index: &usize| {
            let args = self.child(self.call(*index), slot::CALL_ARGS);
            let count = self.word(args) as usize;
            (1..=count).any(|arg| self.word(args + 4 * arg) == value)
        };
        (0..instructions).filter(is_used).count()
    }

    /// Turns the last instruction of `add_cuda0`, a copy, into another one with the
    /// same two words.
    pub(crate) fn turn_last(&mut self, kind: u8, first: u32, second: u32) {
        let instruction = self.instruction(3);
        let call = self.call(3);
        let union_type = self.field(instruction, slot::UNION_TYPE).unwrap();
        let words = [0, 1].map(|slot| self.field(call, slot).unwrap());
        self.bytes[union_type] = kind;
        self.set(words[0], first);
        self.set(words[1], second);
    }

    /// The call of an instruction of the first chain.
    pub(crate) fn call(&self, index: usize) -> usize {
        self.child(self.instruction(index), slot::UNION_VALUE)
    }
}
