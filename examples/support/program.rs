//! What both program examples do: arguments, reading, and JSON.

use std::path::{Path, PathBuf};

use device_memory::Device;
use device_memory::pte::{Method, PlannedTensor, Program};
use serde_json::{Value, json};

/// What can end an example: one line for a person.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The command line.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// The program's file.
    pub(crate) file: PathBuf,
    /// The one method to show, or all.
    pub(crate) method: Option<String>,
    /// Whether to print JSON instead of a table.
    pub(crate) json: bool,
}

impl Arguments {
    /// Reads the command line; `usage` is what to say if it makes no sense.
    pub(crate) fn read(usage: &str) -> Result<Self, Failure> {
        let mut found = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => found.json = true,
                "--method" => found.method = Some(words.next().ok_or(usage)?),
                flag if flag.starts_with('-') => return Err(usage.into()),
                file if found.file.as_os_str().is_empty() => found.file = file.into(),
                _ => return Err(usage.into()),
            }
        }
        if found.file.as_os_str().is_empty() {
            return Err(usage.into());
        }
        Ok(found)
    }

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Failure> {
        std::fs::read(&self.file)
            .map_err(|error| format!("{}: {error}", self.file.display()).into())
    }

    /// The methods asked for.
    pub(crate) fn methods<'p, 'a>(
        &self,
        program: &'p Program<'a>,
    ) -> Result<Vec<&'p Method<'a>>, Failure> {
        match &self.method {
            Some(name) => Ok(vec![program.method(name)?]),
            None => Ok(program.methods().iter().collect()),
        }
    }
}

/// Everything odd about the program, one line each.
pub(crate) fn warnings(program: &Program<'_>) -> Result<Vec<String>, Failure> {
    let mut lines: Vec<String> = program.warnings().iter().map(ToString::to_string).collect();
    if program.warnings_left_out() > 0 {
        lines.push(format!("{} more", program.warnings_left_out()));
    }
    for method in program.methods() {
        for overwrite in method.overwrites()? {
            lines.push(format!("method {:?}, {overwrite}", method.name()));
        }
    }
    Ok(lines)
}

/// A program as JSON.
pub(crate) fn program_json(file: &Path, bytes: usize, methods: Vec<Value>) -> Value {
    let name = file.file_name().map(|name| name.to_string_lossy());
    json!({ "file": name, "bytes": bytes, "methods": methods })
}

/// A method as JSON, with the names of ExecuTorch's schema.
pub(crate) fn method_json(method: &Method<'_>) -> Value {
    json!({
        "name": method.name(),
        "inputs": method.inputs().map(|(value, _)| value).collect::<Vec<_>>(),
        "outputs": method.outputs().map(|(value, _)| value).collect::<Vec<_>>(),
        "non_const_buffer_sizes": method.non_const_buffer_sizes().collect::<Vec<_>>(),
        "num_memory_planned_buffers": method.num_memory_planned_buffers(),
        "buffers": method.buffers().iter().enumerate().map(|(index, buffer)| json!({
            "index": index,
            "memory_id": index + 1,
            "size": buffer.size,
            "device_type": type_code(buffer.device),
            "device_index": buffer.device.index(),
        })).collect::<Vec<_>>(),
        "planned_tensors": method.planned_tensors().map(|tensor| tensor_json(&tensor)).collect::<Vec<_>>(),
    })
}

fn tensor_json(tensor: &PlannedTensor<'_>) -> Value {
    let offset = tensor.offset() as u64;
    json!({
        "value": tensor.value(),
        "scalar_type": tensor.scalar_type().code(),
        "scalar_type_name": tensor.scalar_type().name(),
        "sizes": tensor.sizes().collect::<Vec<_>>(),
        "dim_order": tensor.dim_order(),
        "nbytes": tensor.nbytes(),
        "shape_dynamism": tensor.shape_dynamism().name(),
        "data_buffer_idx": tensor.data_buffer_idx(),
        "device_type": type_code(tensor.device()),
        "device_index": tensor.device().index(),
        "name": tensor.name(),
        "location": tensor.location().name(),
        "memory_id": tensor.memory_id(),
        "memory_offset_low": offset & 0xffff_ffff,
        "memory_offset_high": offset >> 32,
        "memory_offset": offset,
    })
}

/// ExecuTorch's code for the type of a device, which programs always have.
fn type_code(device: Device) -> Option<i8> {
    device.device_type().to_executorch()
}

/// `[2, 3]`.
pub(crate) fn sizes(tensor: &PlannedTensor<'_>) -> String {
    let sizes: Vec<String> = tensor.sizes().map(|size| size.to_string()).collect();
    format!("[{}]", sizes.join(", "))
}
