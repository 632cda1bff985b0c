//! The tables of ExecuTorch's program schema that this reader looks at.
//!
//! Rank 4. Part of `pte`.
//!
//! A line is a field: its slot in the vtable, its name, its type. Slots that are
//! left out are not read. An absent number is 0, an absent reference is `None`.
//! A name that ends with `_at` is where the field is, to write it.

use crate::pte::fault::Fallible;
use crate::pte::link::Link;
use crate::pte::vector::{Ints, Longs, Tables, ULongs};
use crate::pte::wire::{Field, FromTable, Table};

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident { $($slot:literal $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $table<'a>(Table<'a>);

        impl<'a> From<Table<'a>> for $table<'a> {
            #[inline]
            fn from(table: Table<'a>) -> Self {
                Self(table)
            }
        }

        impl<'a> FromTable<'a> for $table<'a> {}

        impl<'a> $table<'a> {
            $(
                #[inline]
                pub(super) fn $field(&self) -> Fallible<$kind> {
                    Field::read(&self.0, $slot, stringify!($field))
                }
            )*
        }
    )*};
}

tables! {
    /// The root.
    Program {
        0 version: u32,
        1 execution_plan: Option<Tables<'a, ExecutionPlan<'a>>>,
        2 constant_buffer: Option<Tables<'a, Buffer<'a>>>,
        3 backend_delegate_data: Option<Tables<'a, InlineData<'a>>>,
        4 segments: Option<Tables<'a, DataSegment<'a>>>,
        5 constant_segment: Option<SubsegmentOffsets<'a>>,
        6 mutable_data_segments: Option<Tables<'a, SubsegmentOffsets<'a>>>,
        7 named_data: Option<Tables<'a, NamedData<'a>>>,
    }
    /// A method.
    ExecutionPlan {
        0 name: Option<&'a str>,
        2 values: Option<Tables<'a, EValue<'a>>>,
        3 inputs: Option<Ints<'a>>,
        4 outputs: Option<Ints<'a>>,
        5 chains: Option<Tables<'a, Chain<'a>>>,
        6 operators: Option<Tables<'a, Operator<'a>>>,
        7 delegates: Option<Tables<'a, BackendDelegate<'a>>>,
        8 non_const_buffer_sizes: Option<Longs<'a>>,
        8 non_const_buffer_sizes_at: Option<Link<'a>>,
        9 non_const_buffer_device: Option<Tables<'a, NonConstBufferDevice<'a>>>,
    }
    /// The device of an arena that is not on the CPU.
    NonConstBufferDevice {
        0 buffer_idx: i32,
        1 device_type: i8,
        2 device_index: i8,
    }
    /// A value: a union of the tables below.
    EValue {
        0 val_type: u8,
        1 val: Option<Link<'a>>,
    }
    /// An integer.
    Int {
        0 int_val: i64,
    }
    /// A truth value.
    Bool {
        0 bool_val: u8,
    }
    /// A float, as its bits.
    Double {
        0 double_val: u64,
    }
    /// A text.
    Text {
        0 string_val: Option<&'a str>,
    }
    /// Values that are integers.
    IntList {
        0 items: Option<Longs<'a>>,
    }
    /// Floats, as their bits.
    DoubleList {
        0 items: Option<ULongs<'a>>,
    }
    /// Truth values.
    BoolList {
        0 items: Option<&'a [u8]>,
    }
    /// Values that are tensors.
    TensorList {
        0 items: Option<Ints<'a>>,
    }
    /// A tensor.
    Tensor {
        0 scalar_type: i8,
        1 storage_offset: i32,
        2 sizes: Option<Ints<'a>>,
        3 dim_order: Option<&'a [u8]>,
        5 data_buffer_idx: u32,
        6 allocation_info: Option<Link<'a>>,
        8 shape_dynamism: i8,
        9 extra_tensor_info: Option<Link<'a>>,
    }
    /// Where a planned tensor lies.
    AllocationDetails {
        0 memory_id: u32,
        1 memory_offset_low: u32,
        2 memory_offset_high: u32,
        1 low_at: Option<Link<'a>>,
        2 high_at: Option<Link<'a>>,
    }
    /// What few tensors need.
    ExtraTensorInfo {
        0 mutable_data_segments_idx: u64,
        1 fully_qualified_name: Option<&'a str>,
        2 location: i8,
        3 device_type: i8,
        4 device_index: i8,
    }
    /// A list of instructions.
    Chain {
        0 inputs: Option<Ints<'a>>,
        1 outputs: Option<Ints<'a>>,
        2 instructions: Option<Tables<'a, Instruction<'a>>>,
    }
    /// An instruction: a union of the calls below.
    Instruction {
        0 instr_args_type: u8,
        1 instr_args: Option<Link<'a>>,
    }
    /// Runs an operator.
    KernelCall {
        0 op_index: i32,
        1 args: Option<Ints<'a>>,
    }
    /// Runs a delegate.
    DelegateCall {
        0 delegate_index: i32,
        1 args: Option<Ints<'a>>,
    }
    /// Makes one value the same as another.
    MoveCall {
        0 move_from: i32,
        1 move_to: i32,
    }
    /// Goes on elsewhere if a condition is false.
    JumpFalseCall {
        0 cond_value_index: i32,
        1 destination_instruction: i32,
    }
    /// Ends the use of a value.
    FreeCall {
        0 value_index: i32,
    }
    /// An operator of the method.
    Operator {
        0 name: Option<&'a str>,
        1 overload: Option<&'a str>,
    }
    /// A part of the method that a back end runs.
    BackendDelegate {
        0 id: Option<&'a str>,
        1 processed: Option<DataReference<'a>>,
        2 compile_specs: Option<Tables<'a, CompileSpec<'a>>>,
    }
    /// Where the data of a delegate is.
    DataReference {
        0 location: i8,
        1 index: u32,
    }
    /// A setting of a delegate.
    CompileSpec {
        0 key: Option<&'a str>,
        1 value: Option<&'a [u8]>,
    }
    /// A constant inside the program.
    Buffer {
        0 storage: Option<&'a [u8]>,
    }
    /// Data of a delegate inside the program.
    InlineData {
        0 data: Option<&'a [u8]>,
    }
    /// A range of the file behind the program.
    DataSegment {
        0 offset: u64,
        1 size: u64,
    }
    /// The starts of parts of a segment.
    SubsegmentOffsets {
        0 segment_index: u32,
        1 offsets: Option<ULongs<'a>>,
    }
    /// Data with a name.
    NamedData {
        0 key: Option<&'a str>,
        1 segment_index: u32,
    }
}
