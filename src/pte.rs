//! ExecuTorch programs (`.pte` files): what memory they need, where.
//!
//! Rank 4. Imports the contract and the words: `plan`, `shape`, `scalar`,
//! `device`, `error`.
//!
//! [`Program::parse`] checks a whole program before it yields anything, so that
//! no accessor fails on what the file says. It does not trust the file: no input
//! makes it panic, read past the end or take more memory than a small multiple
//! of the file. Strings and lists stay in the file and are borrowed from it.
//!
//! What is wrong is an [`InvalidProgram`](crate::ErrorKind::InvalidProgram) error with the
//! method, the value and the field. What is only odd is a [`Warning`].
//!
//! # Examples
//!
//! ```
//! use device_memory::pte::Program;
//!
//! let bytes = std::fs::read("tests/data/pte/add_cuda0.pte")?;
//! let program = Program::parse(&bytes)?;
//! let method = program.method("forward")?;
//!
//! assert_eq!(method.memory_planned_buffer_size(1)?, 48);
//! assert_eq!(method.memory_planned_buffer_device(1)?.to_string(), "cuda:0");
//! assert_eq!(method.planned_tensors().count(), 6);
//! assert!(method.overwrites()?.is_empty());
//! let plan = method.plan()?;
//! assert_eq!(plan.placements().len(), 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod convention;
mod data;
mod delegate;
mod extent;
mod fault;
mod header;
mod instruction;
mod link;
mod lives;
mod memory;
mod method;
mod overwrite;
mod owners;
mod patch;
mod record;
mod replan;
mod schema;
mod tensor;
mod value;
mod vector;
mod walk;
mod warning;
mod wire;

use crate::error::{Error, ErrorKind, Result};
use crate::pte::data::Data;
use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::link::Link;
use crate::pte::vector::Tables;
use crate::pte::warning::{Subject, Warnings};

pub use crate::pte::arena::BufferDevice;
pub use crate::pte::data::{Segment, Subsegments};
pub use crate::pte::delegate::{CompileSpec, Delegate, DelegateLocation, Operator};
pub use crate::pte::header::{ExtendedHeader, Header};
pub use crate::pte::method::Method;
pub use crate::pte::overwrite::{Overwrite, Step};
pub use crate::pte::record::Location;
pub use crate::pte::replan::{ArenaChange, Replanned, replan};
pub use crate::pte::tensor::{PlannedTensor, Tensor};
pub use crate::pte::value::ValueKind;
pub use crate::pte::warning::{Warning, WarningKind};

/// The newest version of the schema that is known.
const NEWEST_VERSION: u32 = 0;

/// An ExecuTorch program, checked.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    header: Header,
    version: u32,
    data: Data<'a>,
    methods: Vec<Method<'a>>,
    warnings: Vec<Warning<'a>>,
    warnings_left_out: usize,
}

impl<'a> Program<'a> {
    /// Checks the program in `bytes`, a whole file.
    ///
    /// # Errors
    ///
    /// - [`InvalidProgram`](crate::ErrorKind::InvalidProgram): the program is malformed, or
    ///   of a version that is not known.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (header, program) = header::read(bytes)?;
        let root = Link {
            program,
            position: 0,
        };
        let root: schema::Program<'a> = root.follow("root")?;
        let version = root.version()?;
        if version > NEWEST_VERSION {
            let reason = format_args!("version {version} is newer than {NEWEST_VERSION}");
            return Err(Fault::new("version", reason).into());
        }
        let mut warnings = Warnings::default();
        let mut budget = Budget::new(program.len());
        let data = Data::read(&root, &header, bytes.len(), &mut warnings, &mut budget)?;
        let Some(plans) = root.execution_plan()? else {
            let reason = format_args!("the program has no list of methods");
            return Err(Fault::new("execution_plan", reason).into());
        };
        if plans.len() == 0 {
            warnings.add(Subject::None, "execution_plan", WarningKind::NoMethods);
        }
        let methods = read_methods(program, plans, &data, &mut warnings, &mut budget)?;
        let (warnings, warnings_left_out) = warnings.finish();
        Ok(Self {
            header,
            version,
            data,
            methods,
            warnings,
            warnings_left_out,
        })
    }

    /// What the first bytes of the file say.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The version of the schema.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The methods, in the order of the file.
    #[must_use]
    pub fn methods(&self) -> &[Method<'a>] {
        &self.methods
    }

    /// The method called `name`.
    ///
    /// # Errors
    ///
    /// - [`NoSuchMethod`](ErrorKind::NoSuchMethod): there is none; the error names
    ///   those that there are.
    pub fn method(&self, name: &str) -> Result<&Method<'a>> {
        let found = self.methods.iter().find(|method| method.name == name);
        found.ok_or_else(|| self.no_such_method(name))
    }

    #[cold]
    fn no_such_method(&self, name: &str) -> Error {
        const SHOWN: usize = 16;
        let methods = self.methods.iter().take(SHOWN);
        let mut known: Vec<String> = methods
            .map(|method| format!("{:?}", method.name()))
            .collect();
        match self.methods.len().saturating_sub(known.len()) {
            0 if known.is_empty() => known.push("none".to_owned()),
            0 => {}
            more => known.push(format!("{more} more")),
        }
        let name = name.to_owned();
        ErrorKind::NoSuchMethod { name, known }.into()
    }

    /// What is odd about the program, yet no reason to refuse it.
    #[must_use]
    pub fn warnings(&self) -> &[Warning<'a>] {
        &self.warnings
    }

    /// How many warnings more there are than [`warnings`](Self::warnings) has.
    #[must_use]
    pub fn warnings_left_out(&self) -> usize {
        self.warnings_left_out
    }

    /// The ranges of the file behind the flatbuffer.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        self.data.segments.iter().filter_map(|table| {
            let table = table.ok()?;
            Some(Segment {
                offset: table.offset().ok()?,
                size: table.size().ok()?,
            })
        })
    }

    /// Where the constants start in their segment, if the program says so.
    #[must_use]
    pub fn constant_segment(&self) -> Option<Subsegments<'a>> {
        self.data.constants
    }

    /// Where initial data of planned tensors starts in its segments.
    pub fn mutable_data_segments(&self) -> impl Iterator<Item = Subsegments<'a>> + use<'a> {
        self.data
            .mutable
            .iter()
            .filter_map(|table| Subsegments::read(&table.ok()?).ok())
    }

    /// The named data and the segments that hold it.
    pub fn named_data(&self) -> impl Iterator<Item = (&'a str, u32)> + use<'a> {
        self.data.named.iter().filter_map(|table| {
            let table = table.ok()?;
            Some((table.key().ok()??, table.segment_index().ok()?))
        })
    }
}

/// Checks every method.
fn read_methods<'a>(
    program: &'a [u8],
    plans: Tables<'a, schema::ExecutionPlan<'a>>,
    data: &Data<'a>,
    warnings: &mut Warnings<'a>,
    budget: &mut Budget,
) -> Fallible<Vec<Method<'a>>> {
    // A method is larger here than the offset that names it in the file.
    budget.charge("execution_plan", plans.len().saturating_mul(256))?;
    let mut methods: Vec<Method<'a>> = Vec::with_capacity(plans.len());
    let mut is_sorted = true;
    for (index, plan) in plans.iter().enumerate() {
        let last = methods.last().map(Method::name);
        plan.and_then(|plan| {
            Method::read_into(&mut methods, program, plan, data, warnings, budget)
        })
        .map_err(|fault| fault.at_method(index))?;
        is_sorted &= last < methods.last().map(Method::name);
    }
    if !is_sorted {
        check_names(&methods)?;
    }
    Ok(methods)
}

/// Checks that no two methods have the same name.
fn check_names(methods: &[Method<'_>]) -> Fallible<()> {
    let mut names: Vec<&str> = methods.iter().map(Method::name).collect();
    names.sort_unstable();
    let mut pairs = names.iter().zip(names.iter().skip(1));
    match pairs.find(|(first, second)| first == second) {
        None => Ok(()),
        Some((name, _)) => {
            let fault = Fault::new("name", format_args!("two methods have the same name"));
            Err(fault.of_method(name))
        }
    }
}
