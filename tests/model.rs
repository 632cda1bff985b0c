//! Sequences of operations against a model that is too simple to be wrong.

#![cfg(feature = "testing")]

use std::sync::Arc;

use device_memory::testing::{FakeDevice, FakeDeviceBuilder};
use device_memory::{
    AllocatorHandle, Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
    ErrorKind,
};
use proptest::prelude::*;

/// What fresh memory of a fake reads as.
const FRESH: u8 = 0xCD;
const DEVICES: u16 = 2;
const CAPACITY: usize = 400;

/// One step. Buffers are named by a number modulo how many there are.
#[derive(Clone, Debug)]
enum Step {
    Create {
        size: usize,
        align: u32,
        index: u16,
    },
    CreateHost {
        size: usize,
    },
    FromClone {
        buffer: usize,
    },
    Write {
        buffer: usize,
        bytes: Vec<u8>,
    },
    WriteAt {
        buffer: usize,
        offset: usize,
        bytes: Vec<u8>,
    },
    ReadAt {
        buffer: usize,
        offset: usize,
        size: usize,
    },
    Fill {
        buffer: usize,
        byte: u8,
    },
    FillPart {
        buffer: usize,
        offset: usize,
        size: usize,
        byte: u8,
    },
    Copy {
        from: usize,
        to: usize,
    },
    CopyPart {
        from: usize,
        to: usize,
        offset: usize,
        size: usize,
    },
    CopyWithin {
        buffer: usize,
        at: usize,
    },
    Drop {
        buffer: usize,
    },
    Free {
        buffer: usize,
    },
    Raw {
        buffer: usize,
    },
    Swap {
        a: usize,
        b: usize,
    },
    Replace {
        fake: usize,
    },
    Unregister,
    Register {
        fake: usize,
    },
    LookUp,
    Synchronize {
        fake: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let n = || any::<usize>();
    let size = || 0_usize..70;
    let bytes = || prop::collection::vec(any::<u8>(), 0..70);
    prop_oneof![
        6 => (size(), 0..8_u32, 0..=DEVICES)
            .prop_map(|(size, align, index)| Step::Create { size, align, index }),
        1 => size().prop_map(|size| Step::CreateHost { size }),
        3 => n().prop_map(|buffer| Step::FromClone { buffer }),
        3 => (n(), bytes()).prop_map(|(buffer, bytes)| Step::Write { buffer, bytes }),
        3 => (n(), size(), bytes())
            .prop_map(|(buffer, offset, bytes)| Step::WriteAt { buffer, offset, bytes }),
        2 => (n(), size(), size())
            .prop_map(|(buffer, offset, size)| Step::ReadAt { buffer, offset, size }),
        2 => (n(), any::<u8>()).prop_map(|(buffer, byte)| Step::Fill { buffer, byte }),
        2 => (n(), size(), size(), any::<u8>())
            .prop_map(|(buffer, offset, size, byte)| Step::FillPart { buffer, offset, size, byte }),
        3 => (n(), n()).prop_map(|(from, to)| Step::Copy { from, to }),
        4 => (n(), n(), size(), size())
            .prop_map(|(from, to, offset, size)| Step::CopyPart { from, to, offset, size }),
        2 => (n(), size()).prop_map(|(buffer, at)| Step::CopyWithin { buffer, at }),
        3 => n().prop_map(|buffer| Step::Drop { buffer }),
        1 => n().prop_map(|buffer| Step::Free { buffer }),
        1 => n().prop_map(|buffer| Step::Raw { buffer }),
        1 => (n(), n()).prop_map(|(a, b)| Step::Swap { a, b }),
        1 => n().prop_map(|fake| Step::Replace { fake }),
        1 => Just(Step::Unregister),
        1 => n().prop_map(|fake| Step::Register { fake }),
        1 => Just(Step::LookUp),
        1 => n().prop_map(|fake| Step::Synchronize { fake }),
    ]
}

/// What the model knows of a buffer.
#[derive(Clone, Debug)]
struct Expected {
    bytes: Vec<u8>,
    align: usize,
    device: Device,
    /// Which fake it came from, if it is not host memory.
    fake: Option<usize>,
}

struct Machine {
    fakes: [FakeDevice; 2],
    handles: [AllocatorHandle; 2],
    registry: DeviceAllocatorRegistry,
    buffers: Vec<DeviceMemoryBuffer>,
    expected: Vec<Expected>,
    registered: Option<usize>,
    made: [u64; 2],
    gone: [u64; 2],
}

impl Machine {
    fn new(builder: &FakeDeviceBuilder) -> Self {
        let fakes = [builder.clone().build(), builder.clone().build()];
        let handles = [0, 1].map(|i: usize| AllocatorHandle::from(Arc::new(fakes[i].clone())));
        Self {
            fakes,
            handles,
            registry: DeviceAllocatorRegistry::new(),
            buffers: Vec::new(),
            expected: Vec::new(),
            registered: None,
            made: [0; 2],
            gone: [0; 2],
        }
    }

    /// The bytes in use on a device of a fake, as the model has it.
    fn in_use(&self, fake: usize, device: Device) -> usize {
        let of_device = self
            .expected
            .iter()
            .filter(|e| e.fake == Some(fake) && e.device == device);
        of_device.map(|e| e.bytes.len()).sum()
    }

    /// Adds what was made, or checks that it could not be.
    fn made(
        &mut self,
        outcome: Result<DeviceMemoryBuffer, device_memory::Error>,
        expected: Expected,
    ) -> Result<(), TestCaseError> {
        let size = expected.bytes.len();
        let room = expected
            .fake
            .is_none_or(|fake| self.in_use(fake, expected.device) + size <= CAPACITY);
        match outcome {
            Ok(buffer) => {
                prop_assert!(room || size == 0);
                if let (Some(fake), 1..) = (expected.fake, size) {
                    self.made[fake] += 1;
                }
                self.buffers.push(buffer);
                self.expected.push(expected);
            }
            Err(error) => {
                prop_assert!(!room, "{:?}", error);
                prop_assert!(error.is_out_of_memory());
                prop_assert_eq!(error.out_of_memory().unwrap().requested, size);
            }
        }
        Ok(())
    }

    /// Takes a buffer out, which is then given back.
    fn take(&mut self, buffer: usize) -> DeviceMemoryBuffer {
        let expected = self.expected.swap_remove(buffer);
        if let (Some(fake), false) = (expected.fake, expected.bytes.is_empty()) {
            self.gone[fake] += 1;
        }
        self.buffers.swap_remove(buffer)
    }

    /// The buffer that a number names, if there is any.
    fn pick(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.buffers.len())
    }

    /// Two different buffers, the second to write.
    fn two(
        &mut self,
        from: usize,
        to: usize,
    ) -> Option<(&DeviceMemoryBuffer, &mut DeviceMemoryBuffer)> {
        if from == to {
            return None;
        }
        let (low, high) = self.buffers.split_at_mut(from.max(to));
        Some(if from < to {
            (&low[from], &mut high[0])
        } else {
            (&high[0], &mut low[to])
        })
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Create { size, align, index } => {
                let layout = DeviceLayout::new(size, 1 << align).unwrap();
                let device = Device::new(DeviceType::Custom(1), index);
                let outcome = DeviceMemoryBuffer::create_in(&self.registry, layout, device);
                let Some(fake) = self.registered else {
                    prop_assert!(outcome.unwrap_err().is_not_registered());
                    return Ok(());
                };
                if index >= DEVICES {
                    let error = outcome.unwrap_err();
                    let invalid = matches!(error.kind(), ErrorKind::InvalidDevice { .. });
                    prop_assert!(invalid, "{:?}", error);
                    return Ok(());
                }
                let expected = Expected {
                    bytes: vec![FRESH; size],
                    align: 1 << align,
                    device,
                    fake: Some(fake),
                };
                self.made(outcome, expected)?;
            }
            Step::CreateHost { size } => {
                let layout = DeviceLayout::from_size(size).unwrap();
                let outcome = DeviceMemoryBuffer::create_in(&self.registry, layout, Device::CPU);
                let expected = Expected {
                    bytes: vec![0; size],
                    align: 64,
                    device: Device::CPU,
                    fake: None,
                };
                self.made(outcome, expected)?;
            }
            Step::FromClone { buffer } => {
                if let Some(buffer) = self.pick(buffer) {
                    let outcome = self.buffers[buffer].try_clone();
                    let expected = self.expected[buffer].clone();
                    self.made(outcome, expected)?;
                }
            }
            Step::Write { buffer, ref bytes } => {
                if let Some(buffer) = self.pick(buffer) {
                    let fits = bytes.len() == self.expected[buffer].bytes.len();
                    let outcome = self.buffers[buffer].copy_from_host(bytes);
                    prop_assert_eq!(outcome.is_ok(), fits);
                    if fits {
                        self.expected[buffer].bytes.clone_from(bytes);
                    }
                }
            }
            Step::WriteAt {
                buffer,
                offset,
                ref bytes,
            } => {
                if let Some(buffer) = self.pick(buffer) {
                    let outcome = self.buffers[buffer].copy_from_host_at(offset, bytes);
                    let target = self.expected[buffer]
                        .bytes
                        .get_mut(offset..offset + bytes.len());
                    prop_assert_eq!(outcome.is_ok(), target.is_some());
                    if let Some(target) = target {
                        target.copy_from_slice(bytes);
                    }
                }
            }
            Step::ReadAt {
                buffer,
                offset,
                size,
            } => {
                if let Some(buffer) = self.pick(buffer) {
                    let mut read = vec![0; size];
                    let outcome = self.buffers[buffer].copy_to_host_at(offset, &mut read);
                    let source = self.expected[buffer].bytes.get(offset..offset + size);
                    prop_assert_eq!(outcome.ok().map(|()| &read[..]), source);
                }
            }
            Step::Fill { buffer, byte } => {
                if let Some(buffer) = self.pick(buffer) {
                    self.buffers[buffer].fill(byte).unwrap();
                    self.expected[buffer].bytes.fill(byte);
                }
            }
            Step::FillPart {
                buffer,
                offset,
                size,
                byte,
            } => {
                if let Some(buffer) = self.pick(buffer) {
                    let span = self.buffers[buffer]
                        .as_span_mut()
                        .into_subspan(offset, size);
                    let target = self.expected[buffer].bytes.get_mut(offset..offset + size);
                    prop_assert_eq!(span.is_ok(), target.is_some());
                    if let (Ok(mut span), Some(target)) = (span, target) {
                        span.fill(byte).unwrap();
                        target.fill(byte);
                    }
                }
            }
            Step::Copy { from, to } => {
                if let (Some(from), Some(to)) = (self.pick(from), self.pick(to)) {
                    let fits = self.expected[from].bytes.len() == self.expected[to].bytes.len();
                    if let Some((source, target)) = self.two(from, to) {
                        let outcome = target.copy_from(source.as_span());
                        prop_assert_eq!(outcome.is_ok(), fits);
                        if fits {
                            self.expected[to].bytes = self.expected[from].bytes.clone();
                        }
                    }
                }
            }
            Step::CopyPart {
                from,
                to,
                offset,
                size,
            } => {
                if let (Some(from), Some(to)) = (self.pick(from), self.pick(to)) {
                    let bytes = self.expected[from].bytes.get(..size).map(<[u8]>::to_vec);
                    let room = self.expected[to].bytes.len() >= offset + size;
                    if let Some((source, target)) = self.two(from, to) {
                        let source = source.as_span().subspan(0, size);
                        let target = target.as_span_mut().into_subspan(offset, size);
                        prop_assert_eq!(source.is_ok(), bytes.is_some());
                        prop_assert_eq!(target.is_ok(), room);
                        if let (Ok(source), Ok(mut target), Some(bytes)) = (source, target, bytes) {
                            target.copy_from(source).unwrap();
                            self.expected[to].bytes[offset..offset + size].copy_from_slice(&bytes);
                        }
                    }
                }
            }
            Step::CopyWithin { buffer, at } => {
                if let Some(buffer) = self.pick(buffer) {
                    let bytes = &mut self.expected[buffer].bytes;
                    let halves = self.buffers[buffer].as_span_mut().into_split_at(at);
                    prop_assert_eq!(halves.is_ok(), at <= bytes.len());
                    if let Ok((front, back)) = halves {
                        let len = front.len().min(back.len());
                        let mut front = front.into_subspan(0, len).unwrap();
                        front
                            .copy_from(back.as_span().subspan(0, len).unwrap())
                            .unwrap();
                        bytes.copy_within(at..at + len, 0);
                    }
                }
            }
            Step::Drop { buffer } => {
                if let Some(buffer) = self.pick(buffer) {
                    drop(self.take(buffer));
                }
            }
            Step::Free { buffer } => {
                if let Some(buffer) = self.pick(buffer) {
                    prop_assert!(self.take(buffer).free().is_ok());
                }
            }
            Step::Raw { buffer } => {
                if let Some(buffer) = self.pick(buffer) {
                    let raw = std::mem::take(&mut self.buffers[buffer]).into_raw();
                    self.buffers[buffer] = own_again(raw);
                }
            }
            Step::Swap { a, b } => {
                if let (Some(a), Some(b)) = (self.pick(a), self.pick(b)) {
                    self.buffers.swap(a, b);
                    self.expected.swap(a, b);
                }
            }
            Step::Replace { fake } => {
                let fake = fake % 2;
                let old = self.registry.replace(self.handles[fake].clone()).unwrap();
                self.check_handle(old.as_ref())?;
                self.registered = Some(fake);
            }
            Step::Unregister => {
                let old = self.registry.unregister(DeviceType::Custom(1));
                self.check_handle(old.as_ref())?;
                self.registered = None;
            }
            Step::Register { fake } => {
                let fake = fake % 2;
                let outcome = self.registry.register(self.handles[fake].clone());
                prop_assert_eq!(outcome.is_ok(), self.registered.is_none());
                self.registered.get_or_insert(fake);
            }
            Step::LookUp => {
                let found = self.registry.get(DeviceType::Custom(1));
                self.check_handle(found.as_ref())?;
                self.check_handle(self.registry.registered(DeviceType::Custom(1)))?;
                let tried = self.registry.try_get(DeviceType::Custom(1));
                self.check_handle(tried.as_ref().ok())?;
            }
            Step::Synchronize { fake } => {
                self.handles[fake % 2].synchronize(0).unwrap();
            }
        }
        self.check()
    }

    /// Checks that a handle is that of the fake which the model has registered.
    fn check_handle(&self, found: Option<&AllocatorHandle>) -> Result<(), TestCaseError> {
        let expected = self.registered.map(|fake| &self.handles[fake]);
        prop_assert_eq!(found.is_some(), expected.is_some());
        if let (Some(found), Some(expected)) = (found, expected) {
            prop_assert!(found.same_allocator(expected));
        }
        Ok(())
    }

    /// Checks all that can be seen without a call.
    fn check(&self) -> Result<(), TestCaseError> {
        for (fake, (made, gone)) in self.fakes.iter().zip(self.made.iter().zip(&self.gone)) {
            prop_assert_eq!((fake.allocations(), fake.deallocations()), (*made, *gone));
            prop_assert_eq!(u64::try_from(fake.live_blocks()).unwrap(), made - gone);
            prop_assert_eq!(fake.violations().len(), 0);
        }
        for (buffer, expected) in self.buffers.iter().zip(&self.expected) {
            prop_assert_eq!(buffer.size(), expected.bytes.len());
            prop_assert_eq!(buffer.layout().align(), expected.align);
            prop_assert!(buffer.ptr().is_aligned_to(expected.align));
            prop_assert_eq!(buffer.device(), expected.device);
        }
        Ok(())
    }

    /// Checks all bytes, gives everything back and checks the balance.
    fn finish(mut self) -> Result<(), TestCaseError> {
        for (buffer, expected) in self.buffers.iter().zip(&self.expected) {
            prop_assert_eq!(&buffer.to_vec().unwrap(), &expected.bytes);
        }
        drop(self.registry);
        drop(self.handles);
        self.buffers.clear();
        for fake in &self.fakes {
            prop_assert_eq!(fake.allocations(), fake.deallocations());
            prop_assert_eq!((fake.live_blocks(), fake.live_bytes()), (0, 0));
            fake.assert_clean();
        }
        Ok(())
    }
}

fn own_again(raw: device_memory::RawDeviceMemory) -> DeviceMemoryBuffer {
    #[expect(unsafe_code, reason = "taking ownership back is unsafe by contract")]
    // SAFETY: the memory was given up a moment ago, and nothing used it since.
    unsafe {
        DeviceMemoryBuffer::from_raw(raw)
    }
}

fn run(builder: &FakeDeviceBuilder, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut machine = Machine::new(builder);
    machine.registered = Some(0);
    machine
        .registry
        .register(machine.handles[0].clone())
        .unwrap();
    for step in steps {
        machine.step(step)?;
    }
    machine.finish()
}

fn fakes() -> FakeDeviceBuilder {
    FakeDevice::builder(DeviceType::Custom(1))
        .devices(usize::from(DEVICES))
        .capacity(CAPACITY)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_is_what_the_model_says(
        steps in prop::collection::vec(any_step(), 0..100),
    ) {
        run(&fakes(), &steps)?;
    }

    #[test]
    fn any_sequence_with_delayed_copies_is_what_the_model_says(
        steps in prop::collection::vec(any_step(), 0..100),
    ) {
        run(&fakes().delayed_copies(true), &steps)?;
    }

    #[test]
    fn any_sequence_with_addresses_that_come_again_is_what_the_model_says(
        steps in prop::collection::vec(any_step(), 0..100),
    ) {
        run(&fakes().reuse_addresses(true), &steps)?;
    }

    #[test]
    fn any_sequence_with_both_is_what_the_model_says(
        steps in prop::collection::vec(any_step(), 0..100),
    ) {
        run(&fakes().reuse_addresses(true).delayed_copies(true), &steps)?;
    }
}
