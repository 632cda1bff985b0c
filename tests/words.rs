//! The words: devices, layouts, addresses, scalar types and errors.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::mem::size_of;
use std::sync::Arc;

use device_memory::{
    AllocatorFault, Attempt, Device, DeviceLayout, DeviceMemoryBuffer, DevicePtr, DeviceType,
    Error, ErrorKind, HostAllocator, InvalidProgram, LayoutError, Operation, OutOfMemory,
    ParseDeviceError, PlacementError, Result, ScalarType, ShapeDynamism, Tag,
};
use proptest::prelude::*;

const CUDA_1: Device = Device::new(DeviceType::Cuda, 1);

/// Every type of device that has a name.
fn all_types() -> Vec<DeviceType> {
    let mut types = vec![
        DeviceType::Cpu,
        DeviceType::Cuda,
        DeviceType::CudaHost,
        DeviceType::CudaManaged,
    ];
    types.extend((0..=u8::MAX).map(DeviceType::Custom));
    types
}

fn any_type() -> impl Strategy<Value = DeviceType> {
    prop::sample::select(all_types())
}

mod devices {
    use super::*;

    #[test]
    fn each_is_written_as_its_type_and_index() {
        let written: Vec<String> = [
            Device::CPU,
            Device::new(DeviceType::Cuda, 1),
            Device::new(DeviceType::CudaHost, 0),
            Device::new(DeviceType::CudaManaged, 65535),
            Device::new(DeviceType::Custom(0), 9),
            Device::new(DeviceType::Custom(255), 10),
        ]
        .iter()
        .map(ToString::to_string)
        .collect();

        assert_eq!(
            written,
            [
                "cpu:0",
                "cuda:1",
                "cuda_host:0",
                "cuda_managed:65535",
                "custom0:9",
                "custom255:10"
            ]
        );
    }

    #[test]
    fn every_type_is_read_back_from_its_name() {
        for device_type in all_types() {
            assert_eq!(device_type.to_string().parse(), Ok(device_type));
        }
    }

    #[test]
    fn a_missing_index_is_zero() {
        for device_type in all_types() {
            assert_eq!(
                device_type.to_string().parse(),
                Ok(Device::new(device_type, 0))
            );
        }
    }

    #[test]
    fn a_text_that_names_no_type_is_refused_with_the_text() {
        for text in [
            "",
            " ",
            "CPU",
            "Cuda",
            "cuda ",
            " cuda",
            "gpu",
            "mps",
            "cudahost",
            "cuda-host",
            "custom",
            "custom-1",
            "custom+1",
            "custom 1",
            "custom01",
            "custom00",
            "custom256",
            "custom65536",
            "custom1x",
            "customx",
            "cpu0",
            "cpu\0",
            "cpü",
        ] {
            let unknown = Err(ParseDeviceError::UnknownType {
                found: text.to_owned(),
            });

            assert_eq!(text.parse::<DeviceType>(), unknown.clone(), "{text:?}");
            assert_eq!(
                text.parse::<Device>(),
                unknown.map(|_: DeviceType| Device::CPU)
            );
            assert!(format!("{text}:0").parse::<Device>().is_err(), "{text:?}:0");
        }
    }

    #[test]
    fn a_text_that_names_no_index_is_refused_with_the_text() {
        for index in [
            "",
            " ",
            "0 ",
            " 0",
            "+0",
            "-0",
            "-1",
            "00",
            "01",
            "0x1",
            "1e3",
            "1.0",
            "65536",
            "99999999999999999999999",
            "0:1",
            ":",
            "a",
            "٣",
            "０",
        ] {
            let parsed = format!("cuda:{index}").parse::<Device>();

            let expected = ParseDeviceError::InvalidIndex {
                found: index.to_owned(),
            };
            assert_eq!(parsed, Err(expected), "{index:?}");
        }
    }

    #[test]
    fn the_two_refusals_say_what_was_found_and_what_is_expected() {
        let unknown = "tpu:0".parse::<Device>().unwrap_err();
        let index = "cuda:-1".parse::<Device>().unwrap_err();

        assert_eq!(
            unknown.to_string(),
            "unknown device type \"tpu\": expected cpu, cuda, cuda_host, cuda_managed or customN \
             (N up to 255)"
        );
        assert_eq!(
            index.to_string(),
            "invalid device index \"-1\": expected a number from 0 to 65535"
        );
    }

    #[test]
    fn two_are_equal_if_type_and_index_are() {
        let mut seen = HashSet::new();
        for device_type in all_types() {
            for index in [0, 1, 255, 256, u16::MAX] {
                let device = Device::new(device_type, index);

                assert_eq!((device.device_type(), device.index()), (device_type, index));
                assert!(seen.insert(device), "{device} equals another");
                assert!(seen.contains(&Device::new(device_type, index)));
            }
        }
    }

    #[test]
    fn only_host_memory_of_any_index_is_cpu() {
        assert!(Device::CPU.is_cpu());
        assert!(Device::new(DeviceType::Cpu, 7).is_cpu());
        for device_type in all_types().into_iter().skip(1) {
            assert!(!Device::new(device_type, 0).is_cpu(), "{device_type}");
        }
    }

    #[test]
    fn the_debug_text_is_the_name() {
        assert_eq!(format!("{CUDA_1:?}"), "Device(cuda:1)");
    }

    #[test]
    fn codes_of_executorch_are_zero_and_one_and_nothing_else() {
        assert_eq!(DeviceType::Cpu.to_executorch(), Some(0));
        assert_eq!(DeviceType::Cuda.to_executorch(), Some(1));
        for device_type in all_types().into_iter().skip(2) {
            assert_eq!(device_type.to_executorch(), None, "{device_type}");
        }
        for code in i8::MIN..=i8::MAX {
            let expected = match code {
                0 => Some(DeviceType::Cpu),
                1 => Some(DeviceType::Cuda),
                _ => None,
            };
            assert_eq!(DeviceType::from_executorch(code), expected, "{code}");
        }
    }

    #[test]
    fn codes_of_dlpack_are_those_of_its_header() {
        let codes = [
            (DeviceType::Cpu, 1),
            (DeviceType::Cuda, 2),
            (DeviceType::CudaHost, 3),
            (DeviceType::CudaManaged, 13),
        ];

        for (device_type, code) in codes {
            assert_eq!(device_type.to_dlpack(), Some(code));
            assert_eq!(DeviceType::from_dlpack(code), Some(device_type));
        }
        for code in (-300..300).chain([i32::MIN, i32::MAX]) {
            if !codes.iter().any(|&(_, known)| known == code) {
                assert_eq!(DeviceType::from_dlpack(code), None, "{code}");
            }
        }
        assert_eq!(DeviceType::Custom(13).to_dlpack(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_device_is_read_back_from_its_text(device_type in any_type(), index: u16) {
            let device = Device::new(device_type, index);

            prop_assert_eq!(device.to_string().parse(), Ok(device));
            prop_assert_eq!((device.device_type(), device.index()), (device_type, index));
        }

        #[test]
        fn any_text_that_is_read_is_written_back_the_same(text in "\\PC{0,12}") {
            if let Ok(device) = text.parse::<Device>() {
                let written = device.to_string();

                let full = format!("{text}:0");
                prop_assert!([&text, &full].contains(&&written), "{:?}", written);
            }
        }

        #[test]
        fn any_text_near_a_device_is_read_or_refused_without_panic(
            name in "(cpu|cuda|cuda_host|cuda_managed|custom)?[0-9]{0,4}",
            rest in "(:?[0-9+ -]{0,6}){0,2}",
        ) {
            let text = format!("{name}{rest}");
            if let Ok(device) = text.parse::<Device>() {
                prop_assert_eq!(device.to_string().parse(), Ok(device));
            }
        }

        #[test]
        fn order_is_by_type_and_then_by_index(a in any_type(), i: u16, b in any_type(), j: u16) {
            prop_assert_eq!(
                Device::new(a, i).cmp(&Device::new(b, j)),
                (a, i).cmp(&(b, j))
            );
        }
    }
}

mod layouts {
    use super::*;

    const LIMIT: usize = isize::MAX.unsigned_abs();

    fn overflow(len: usize, element_size: usize) -> Result<DeviceLayout, LayoutError> {
        Err(LayoutError::SizeOverflow { len, element_size })
    }

    #[test]
    fn no_bytes_and_one_byte_are_sizes() {
        for size in [0, 1] {
            let layout = DeviceLayout::new(size, 1).unwrap();

            assert_eq!((layout.size(), layout.align()), (size, 1));
            assert_eq!(layout.is_empty(), size == 0);
        }
    }

    #[test]
    fn every_power_of_two_is_an_alignment() {
        for exponent in 0..usize::BITS {
            let align = 1_usize << exponent;

            let layout = DeviceLayout::new(0, align).unwrap();

            assert_eq!((layout.size(), layout.align()), (0, align));
        }
    }

    #[test]
    fn no_other_number_is_an_alignment() {
        for align in [
            0,
            3,
            5,
            6,
            12,
            63,
            65,
            96,
            LIMIT,
            usize::MAX - 1,
            usize::MAX,
        ] {
            let invalid = Err(LayoutError::InvalidAlignment { align });

            assert_eq!(DeviceLayout::new(0, align), invalid);
            assert_eq!(DeviceLayout::new(16, align), invalid);
            assert_eq!(DeviceLayout::new(usize::MAX, align), invalid);
        }
    }

    #[test]
    fn the_default_alignment_is_sixty_four() {
        assert_eq!(DeviceLayout::DEFAULT_ALIGN, 64);
        assert_eq!(DeviceLayout::from_size(5), DeviceLayout::new(5, 64));
    }

    #[test]
    fn the_size_rounded_up_to_the_alignment_may_reach_the_limit_and_not_pass_it() {
        for exponent in 0..usize::BITS {
            let align = 1_usize << exponent;
            let largest = LIMIT - (align - 1);

            assert_eq!(DeviceLayout::new(largest, align).unwrap().size(), largest);
            assert_eq!(
                DeviceLayout::new(largest + 1, align),
                overflow(largest + 1, 1)
            );
        }
    }

    #[test]
    fn the_largest_sizes_overflow_with_the_numbers() {
        for size in [LIMIT + 1, usize::MAX - 1, usize::MAX] {
            assert_eq!(DeviceLayout::new(size, 1), overflow(size, 1));
            assert_eq!(DeviceLayout::from_size(size), overflow(size, 1));
        }
    }

    // https://github.com/NVlabs/cuda-oxide/pull/252
    #[test]
    fn the_bytes_of_an_array_are_multiplied_with_a_check() {
        for len in [usize::MAX / 8 + 1, usize::MAX / 8 + 2, usize::MAX] {
            assert_eq!(DeviceLayout::array::<u64>(len), overflow(len, 8));
        }
        // The product fits a `usize`, and is too large all the same.
        assert_eq!(
            DeviceLayout::array::<u64>(LIMIT / 8 + 1),
            overflow(LIMIT / 8 + 1, 8)
        );
        // It fits an `isize`, but not once it is rounded up.
        assert_eq!(DeviceLayout::array::<u8>(LIMIT), overflow(LIMIT, 1));
        assert_eq!(
            DeviceLayout::array::<u8>(LIMIT - 63).map(DeviceLayout::size),
            Ok(LIMIT - 63)
        );
    }

    #[test]
    fn an_array_is_aligned_for_its_elements_and_at_least_by_default() {
        #[repr(align(256))]
        struct Wide(#[expect(dead_code, reason = "only its layout counts")] [u8; 256]);

        let bytes = DeviceLayout::array::<u8>(3).unwrap();
        let wide = DeviceLayout::array::<Wide>(3).unwrap();

        assert_eq!((bytes.size(), bytes.align()), (3, 64));
        assert_eq!((wide.size(), wide.align()), (768, 256));
    }

    #[test]
    fn an_array_of_no_elements_or_of_elements_of_no_bytes_is_empty() {
        assert!(DeviceLayout::array::<u64>(0).unwrap().is_empty());
        assert!(DeviceLayout::array::<()>(usize::MAX).unwrap().is_empty());
    }

    #[test]
    fn constants_may_be_layouts() {
        const PAGE: Result<DeviceLayout, LayoutError> = DeviceLayout::new(4096, 4096);

        assert_eq!(PAGE.unwrap().align(), 4096);
    }

    #[test]
    fn each_refusal_says_the_numbers() {
        let alignment = DeviceLayout::new(16, 3).unwrap_err();
        let size = DeviceLayout::array::<u32>(usize::MAX).unwrap_err();

        assert_eq!(
            alignment.to_string(),
            "invalid alignment 3: expected a power of two"
        );
        assert_eq!(
            size.to_string(),
            format!(
                "size overflow: {} elements of 4 bytes pass the limit of {} bytes",
                usize::MAX,
                isize::MAX
            )
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_size_and_alignment_is_judged_as_wide_arithmetic_judges_it(
            size in prop_oneof![any::<usize>(), 0_usize..1 << 20, LIMIT - 4096..=LIMIT + 4096],
            align in prop_oneof![
                any::<usize>(),
                (0..usize::BITS).prop_map(|exponent| 1_usize << exponent),
                0_usize..70,
            ],
        ) {
            let layout = DeviceLayout::new(size, align);

            if !align.is_power_of_two() {
                prop_assert_eq!(layout, Err(LayoutError::InvalidAlignment { align }));
            } else if (size as u128).next_multiple_of(align as u128) > LIMIT as u128 {
                prop_assert_eq!(layout, overflow(size, 1));
            } else {
                let layout = layout.unwrap();
                prop_assert_eq!((layout.size(), layout.align()), (size, align));
            }
        }

        #[test]
        fn any_array_is_judged_as_wide_arithmetic_judges_it(
            len in prop_oneof![any::<usize>(), 0_usize..1 << 20, LIMIT / 8 - 64..=LIMIT / 8 + 64],
        ) {
            let layout = DeviceLayout::array::<u64>(len);

            if (len as u128 * 8).next_multiple_of(64) > LIMIT as u128 {
                prop_assert_eq!(layout, overflow(len, 8));
            } else {
                prop_assert_eq!(layout.map(DeviceLayout::size), Ok(len * 8));
            }
        }
    }
}

mod addresses {
    use super::*;

    #[test]
    fn null_is_none() {
        assert_eq!(DevicePtr::from_addr(0), None);
        assert_eq!(DevicePtr::from_raw(std::ptr::null_mut()), None);
    }

    #[test]
    fn every_other_address_goes_in_and_comes_out() {
        let mut byte = 7_u8;
        let raw = std::ptr::from_mut(&mut byte);

        for addr in [1, 0x1000, usize::MAX] {
            assert_eq!(DevicePtr::from_addr(addr).unwrap().addr(), addr);
        }
        assert_eq!(DevicePtr::from_raw(raw).unwrap().as_raw(), raw);
    }

    #[test]
    fn a_sum_that_wraps_is_none() {
        let last = DevicePtr::from_addr(usize::MAX).unwrap();
        let first = DevicePtr::from_addr(1).unwrap();

        assert_eq!(last.checked_add(0), Some(last));
        assert_eq!(last.checked_add(1), None);
        assert_eq!(last.checked_add(usize::MAX), None);
        assert_eq!(first.checked_add(usize::MAX - 1), Some(last));
        assert_eq!(first.checked_add(usize::MAX), None);
    }

    #[test]
    fn alignment_is_that_of_the_address_to_powers_of_two() {
        let ptr = DevicePtr::from_addr(0x60).unwrap();

        for align in [1, 2, 4, 8, 16, 32] {
            assert!(ptr.is_aligned_to(align), "{align}");
        }
        for align in [0, 3, 48, 64, 96, 1 << (usize::BITS - 1)] {
            assert!(!ptr.is_aligned_to(align), "{align}");
        }
    }

    #[test]
    fn texts_are_hexadecimal() {
        let ptr = DevicePtr::from_addr(0x7f00).unwrap();

        assert_eq!(ptr.to_string(), "0x7f00");
        assert_eq!(format!("{ptr:?}"), "DevicePtr(0x7f00)");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_sum_is_that_of_the_numbers_or_none(addr in 1..=usize::MAX, offset: usize) {
            let sum = DevicePtr::from_addr(addr).unwrap().checked_add(offset);

            prop_assert_eq!(sum.map(DevicePtr::addr), addr.checked_add(offset));
        }
    }
}

mod scalars {
    use super::*;

    #[test]
    fn codes_names_and_sizes_are_those_of_the_schema() {
        let table: Vec<(i8, &str, usize)> = ScalarType::ALL
            .iter()
            .map(|scalar| (scalar.code(), scalar.name(), scalar.size()))
            .collect();

        assert_eq!(
            table,
            [
                (0, "BYTE", 1),
                (1, "CHAR", 1),
                (2, "SHORT", 2),
                (3, "INT", 4),
                (4, "LONG", 8),
                (5, "HALF", 2),
                (6, "FLOAT", 4),
                (7, "DOUBLE", 8),
                (8, "COMPLEX32", 4),
                (9, "COMPLEX64", 8),
                (10, "COMPLEX128", 16),
                (11, "BOOL", 1),
                (12, "QINT8", 1),
                (13, "QUINT8", 1),
                (14, "QINT32", 4),
                (15, "BFLOAT16", 2),
                (16, "QUINT4X2", 1),
                (17, "QUINT2X4", 1),
                (18, "BITS1X8", 1),
                (19, "BITS2X4", 1),
                (20, "BITS4X2", 1),
                (21, "BITS8", 1),
                (22, "BITS16", 2),
                (23, "FLOAT8E5M2", 1),
                (24, "FLOAT8E4M3FN", 1),
                (25, "FLOAT8E5M2FNUZ", 1),
                (26, "FLOAT8E4M3FNUZ", 1),
                (27, "UINT16", 2),
                (28, "UINT32", 4),
                (29, "UINT64", 8),
            ]
        );
    }

    #[test]
    fn each_is_found_by_its_code_and_by_no_other() {
        for code in i8::MIN..=i8::MAX {
            let found = ScalarType::from_code(code);

            let position = usize::try_from(code).ok();
            let expected = position.and_then(|code| ScalarType::ALL.get(code)).copied();
            assert_eq!(found, expected, "{code}");
        }
    }

    #[test]
    fn the_text_is_the_name() {
        assert_eq!(ScalarType::BFloat16.to_string(), "BFLOAT16");
    }

    #[test]
    fn the_kinds_of_shapes_are_read_by_code() {
        let kinds: Vec<_> = (-1..=3).map(ShapeDynamism::from_code).collect();

        assert_eq!(
            kinds,
            [
                None,
                Some(ShapeDynamism::Static),
                Some(ShapeDynamism::DynamicBound),
                Some(ShapeDynamism::DynamicUnbound),
                None
            ]
        );
        assert_eq!(
            kinds[1..4]
                .iter()
                .flatten()
                .map(|kind| kind.name())
                .collect::<Vec<_>>(),
            ["STATIC", "DYNAMIC_BOUND", "DYNAMIC_UNBOUND"]
        );
    }
}

mod errors {
    use super::*;

    /// What a driver might say.
    #[derive(Debug)]
    struct DriverError(i32);

    impl std::fmt::Display for DriverError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "driver error {}", self.0)
        }
    }

    impl StdError for DriverError {}

    fn layout(size: usize) -> DeviceLayout {
        DeviceLayout::from_size(size).unwrap()
    }

    /// One error of every kind, with its text and its code.
    fn all_kinds() -> Vec<(ErrorKind, &'static str, u32)> {
        let device = CUDA_1;
        let operation = Operation::Allocate;
        vec![
            (
                ErrorKind::NotRegistered {
                    device_type: DeviceType::Cuda,
                },
                "no allocator is registered for device type cuda",
                0x20,
            ),
            (
                ErrorKind::AlreadyRegistered {
                    device_type: DeviceType::Custom(3),
                },
                "an allocator is already registered for device type custom3",
                0x16,
            ),
            (
                ErrorKind::InvalidDevice { device, count: 1 },
                "invalid device cuda:1: 1 device(s) of type cuda present",
                0x12,
            ),
            (
                ErrorKind::ParseDevice(ParseDeviceError::InvalidIndex {
                    found: "x".to_owned(),
                }),
                "invalid device index \"x\": expected a number from 0 to 65535",
                0x12,
            ),
            (
                ErrorKind::Layout(LayoutError::InvalidAlignment { align: 12 }),
                "invalid alignment 12: expected a power of two",
                0x12,
            ),
            (
                ErrorKind::OutOfMemory(OutOfMemory::new(device, layout(48))),
                "out of memory on cuda:1: 48 bytes requested (align 64)",
                0x21,
            ),
            (
                ErrorKind::BadAllocator {
                    device,
                    fault: AllocatorFault::Misaligned { addr: 9, align: 64 },
                },
                "allocator of cuda:1 returned memory that is not aligned to 64 bytes: 0x9",
                0x01,
            ),
            (
                ErrorKind::BadAllocator {
                    device,
                    fault: AllocatorFault::Wraps {
                        addr: 0xff40,
                        size: 256,
                    },
                },
                "allocator of cuda:1 returned memory that wraps the address space: 256 bytes from \
                 0xff40",
                0x01,
            ),
            (
                ErrorKind::Backend {
                    device,
                    operation,
                    source: Box::new(DriverError(2)),
                },
                "allocate on cuda:1 failed: driver error 2",
                0x01,
            ),
            (
                ErrorKind::AllocatorPanicked { device, operation },
                "allocator panicked during allocate on cuda:1",
                0x01,
            ),
            (
                ErrorKind::NoDeviceType,
                "allocator panicked when asked for its type of device",
                0x01,
            ),
            (
                ErrorKind::PlanTooLarge { device },
                "plan needs more bytes on cuda:1 than can be addressed",
                0x12,
            ),
            (
                ErrorKind::NoSuchMethod {
                    name: "sample".to_owned(),
                    known: vec!["forward".to_owned(), "decode".to_owned()],
                },
                "no method \"sample\": the program has forward, decode",
                0x12,
            ),
            (
                ErrorKind::NotSupported {
                    device,
                    operation: Operation::Trim,
                },
                "trim is not supported on cuda:1",
                0x10,
            ),
            (
                ErrorKind::NotHostAccessible { device },
                "memory of cuda:1 is not accessible from the host",
                0x10,
            ),
            (
                ErrorKind::DeviceMismatch {
                    expected: device,
                    found: Device::CPU,
                },
                "device mismatch: expected cuda:1, found cpu:0",
                0x12,
            ),
            (
                ErrorKind::ContextMismatch { device },
                "context mismatch: the stream is not of the primary context of cuda:1",
                0x12,
            ),
            (
                ErrorKind::OutOfBounds {
                    device,
                    offset: 60,
                    size: 8,
                    len: 64,
                },
                "out of bounds on cuda:1: 8 bytes at offset 60 of 64",
                0x12,
            ),
            (
                ErrorKind::LengthMismatch {
                    device,
                    expected: 4,
                    found: 5,
                },
                "length mismatch on cuda:1: expected 4 bytes, found 5",
                0x12,
            ),
            (
                ErrorKind::CountMismatch {
                    what: "planned buffers",
                    expected: 2,
                    found: 1,
                },
                "count mismatch: expected 2 planned buffers, found 1",
                0x12,
            ),
            (
                ErrorKind::Placement(PlacementError::Overflow {
                    memory_id: 1,
                    offset: 3,
                    size: 4,
                }),
                "placement overflows: 4 bytes at offset 3 of memory id 1",
                0x12,
            ),
            (
                ErrorKind::Placement(PlacementError::UnknownMemoryId {
                    memory_id: 2,
                    count: 2,
                }),
                "unknown memory id 2: 2 buffer(s) planned",
                0x12,
            ),
            (
                ErrorKind::Placement(PlacementError::OutOfBounds {
                    memory_id: 1,
                    offset: 45,
                    size: 4,
                    len: 48,
                }),
                "placement passes the end of memory id 1: 4 bytes at offset 45 of 48",
                0x21,
            ),
            (
                ErrorKind::Overlap {
                    first: 0,
                    second: 3,
                },
                "ranges 0 and 3 overlap",
                0x12,
            ),
            (
                ErrorKind::AtIndex {
                    what: "request",
                    index: 2,
                    source: ErrorKind::ShutDown { device }.into(),
                },
                "request 2: driver of cuda:1 is shut down",
                0x02,
            ),
            (
                ErrorKind::ForkedProcess { device },
                "memory of cuda:1 belongs to the parent of this forked process",
                0x02,
            ),
            (
                ErrorKind::ShutDown { device },
                "driver of cuda:1 is shut down",
                0x02,
            ),
            (
                ErrorKind::NoDeviceType,
                "allocator panicked when asked for its type of device",
                0x01,
            ),
            (
                ErrorKind::PlanTooLarge { device },
                "plan needs more bytes on cuda:1 than can be addressed",
                0x12,
            ),
            (
                ErrorKind::NoSuchMethod {
                    name: "run".to_owned(),
                    known: vec!["\"forward\"".to_owned()],
                },
                "no method \"run\": the program has \"forward\"",
                0x12,
            ),
            (
                ErrorKind::DriverNotFound {
                    device_type: DeviceType::Cuda,
                    tried: vec!["libcuda.so".to_owned(), "libcuda.so.1".to_owned()],
                },
                "no driver found for cuda: tried libcuda.so, libcuda.so.1",
                0x20,
            ),
            (
                ErrorKind::MissingSymbol {
                    device_type: DeviceType::Cuda,
                    symbol: "cuMemAllocAsync",
                },
                "driver of cuda lacks cuMemAllocAsync",
                0x10,
            ),
            (
                ErrorKind::DriverTooOld {
                    device_type: DeviceType::Cuda,
                    found: 11_020,
                    needed: 11_040,
                },
                "driver of cuda is too old: found 11.2, needed 11.4",
                0x10,
            ),
            (
                ErrorKind::NoDevice {
                    device_type: DeviceType::Cuda,
                },
                "no device of type cuda present",
                0x20,
            ),
            (
                ErrorKind::Driver {
                    device,
                    operation: Operation::Fill,
                    call: "cuMemsetD8Async",
                    code: 700,
                    name: "ILLEGAL_ADDRESS",
                },
                "fill on cuda:1 failed: cuMemsetD8Async returned 700 (ILLEGAL_ADDRESS)",
                0x01,
            ),
            (
                ErrorKind::Capturing {
                    device,
                    operation: Operation::Deallocate,
                },
                "deallocate on cuda:1 refused: its stream is capturing",
                0x10,
            ),
            (
                ErrorKind::InvalidTensor {
                    reason: "why".to_owned(),
                },
                "invalid tensor: why",
                0x12,
            ),
            (
                ErrorKind::InvalidProgram(InvalidProgram::new("magic", "found 7")),
                "invalid program: magic: found 7",
                0x23,
            ),
        ]
    }

    #[test]
    fn every_kind_has_its_text_and_the_code_of_its_class() {
        for (kind, text, code) in all_kinds() {
            let error = Error::from(kind);

            assert_eq!(error.to_string(), text);
            assert_eq!(error.kind().to_string(), text);
            assert_eq!(error.code(), code, "{text}");
        }
    }

    #[test]
    fn texts_are_lower_case_without_a_full_stop() {
        for (kind, text, _) in all_kinds() {
            assert!(!text.ends_with('.'), "{kind:?}");
            assert!(
                !text.starts_with(|first: char| first.is_uppercase()),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn each_predicate_holds_for_its_kinds_alone_and_looks_behind_positions() {
        for (kind, text, _) in all_kinds() {
            let expected = (
                matches!(kind, ErrorKind::OutOfMemory(_)),
                matches!(kind, ErrorKind::NotRegistered { .. }),
                matches!(
                    kind,
                    ErrorKind::NotSupported { .. } | ErrorKind::NotHostAccessible { .. }
                ),
                text.contains("is shut down"),
                matches!(kind, ErrorKind::ForkedProcess { .. }),
                matches!(kind, ErrorKind::DeviceMismatch { .. }),
            );
            let plain = Error::from(kind);
            let found = |error: &Error| {
                (
                    error.is_out_of_memory(),
                    error.is_not_registered(),
                    error.is_not_supported(),
                    error.is_shut_down(),
                    error.is_forked_process(),
                    error.is_device_mismatch(),
                )
            };
            assert_eq!(found(&plain), expected, "{text}");

            let code = plain.code();
            let nested = Error::from(ErrorKind::AtIndex {
                what: "buffer",
                index: 1,
                source: Error::from(ErrorKind::AtIndex {
                    what: "plan",
                    index: 0,
                    source: plain,
                }),
            });
            assert_eq!(found(&nested), expected, "{text}");
            assert_eq!(nested.code(), code, "{text}");
            assert_eq!(nested.to_string(), format!("buffer 1: plan 0: {text}"));
        }
    }

    #[test]
    fn the_driver_s_own_error_is_the_source() {
        let error = Error::backend(CUDA_1, Operation::Fill, DriverError(700));

        let source = error.source().unwrap();

        assert_eq!(source.downcast_ref::<DriverError>().unwrap().0, 700);
        assert!(matches!(error.kind(), ErrorKind::Backend { .. }));
    }

    #[test]
    fn the_error_of_one_among_several_is_the_source() {
        let error = Error::from(ErrorKind::AtIndex {
            what: "request",
            index: 0,
            source: ErrorKind::NotHostAccessible { device: CUDA_1 }.into(),
        });

        let source = error.source().unwrap().downcast_ref::<Error>().unwrap();

        assert!(source.is_not_supported());
        assert!(matches!(error.root(), ErrorKind::NotHostAccessible { .. }));
        assert!(matches!(
            error.into_kind(),
            ErrorKind::AtIndex { index: 0, .. }
        ));
    }

    #[test]
    fn the_parts_become_errors_with_a_question_mark() {
        fn parse() -> Result<Device> {
            Ok("cuda:x".parse()?)
        }
        fn lay_out() -> Result<DeviceLayout> {
            Ok(DeviceLayout::new(1, 3)?)
        }
        fn place() -> Result<()> {
            Err(PlacementError::UnknownMemoryId {
                memory_id: 0,
                count: 0,
            })?
        }
        fn run_out() -> Result<()> {
            Err(OutOfMemory::new(CUDA_1, layout(1)))?
        }

        assert!(matches!(
            parse().unwrap_err().kind(),
            ErrorKind::ParseDevice(_)
        ));
        assert!(matches!(
            lay_out().unwrap_err().kind(),
            ErrorKind::Layout(_)
        ));
        assert!(matches!(
            place().unwrap_err().kind(),
            ErrorKind::Placement(_)
        ));
        assert!(run_out().unwrap_err().is_out_of_memory());
    }

    #[test]
    fn the_report_of_a_lack_of_memory_says_all_that_is_known_and_no_more() {
        let mut report = OutOfMemory::new(CUDA_1, DeviceLayout::new(1024, 256).unwrap());
        let first = "out of memory on cuda:1: 1024 bytes requested (align 256)";
        assert_eq!(report.to_string(), first);

        report.in_use = Some(1);
        report.reserved = Some(2);
        report.limit = Some(3);
        report.largest_free = Some(4);
        report.device_free = Some(5);
        report.device_total = Some(6);

        assert_eq!(
            report.to_string(),
            format!(
                "{first}, 1 in use, 2 reserved, limit 3, largest free block 4, 5 of 6 free on the \
                 device"
            )
        );
        report.device_total = None;
        assert!(report.to_string().ends_with(", 5 free on the device"));
        report.device_free = None;
        report.device_total = Some(6);
        assert!(report.to_string().ends_with(", 6 on the device"));
    }

    #[test]
    fn the_report_comes_out_of_the_error_whole() {
        let mut report = OutOfMemory::new(CUDA_1, layout(64));
        report.device_free = Some(10);

        let error = Error::from(report.clone());

        assert_eq!(error.out_of_memory(), Some(&report));
        assert_eq!(
            Error::from(ErrorKind::ShutDown { device: CUDA_1 }).out_of_memory(),
            None
        );
    }

    #[test]
    fn the_fault_of_a_program_says_where_it_is() {
        let mut fault = InvalidProgram::new("sizes", "dimension 1 is -3");
        fault.method = Some("forward".to_owned());
        fault.value = Some(12);

        assert_eq!(
            fault.to_string(),
            "invalid program: method \"forward\", value 12, sizes: dimension 1 is -3"
        );
    }

    #[test]
    fn every_operation_has_a_name() {
        let names = [
            (Operation::Allocate, "allocate"),
            (Operation::Deallocate, "deallocate"),
            (Operation::CopyHostToDevice, "copy from host to device"),
            (Operation::CopyDeviceToHost, "copy from device to host"),
            (Operation::CopyDeviceToDevice, "copy from device to device"),
            (Operation::Fill, "fill"),
            (Operation::MemoryInfo, "memory info"),
            (Operation::Synchronize, "synchronize"),
            (Operation::Trim, "trim"),
            (Operation::HostAccess, "host access"),
        ];

        for (operation, name) in names {
            assert_eq!(operation.to_string(), name);
        }
    }

    #[test]
    fn a_debug_text_names_the_kind() {
        let error = Error::from(ErrorKind::ShutDown { device: CUDA_1 });

        assert_eq!(format!("{error:?}"), "ShutDown { device: Device(cuda:1) }");
    }
}

#[test]
fn what_is_passed_about_is_small() {
    let word = size_of::<usize>();

    assert_eq!(size_of::<Error>(), word);
    assert_eq!(size_of::<Result<()>>(), word);
    assert_eq!(size_of::<Device>(), 4);
    assert_eq!(size_of::<DeviceType>(), 2);
    assert_eq!(size_of::<DevicePtr>(), word);
    assert_eq!(size_of::<Option<DevicePtr>>(), word);
    assert_eq!(size_of::<DeviceLayout>(), 2 * word);
    assert!(size_of::<DeviceMemoryBuffer>() <= 5 * word);
    assert_eq!(
        size_of::<Result<DeviceMemoryBuffer>>(),
        size_of::<DeviceMemoryBuffer>()
    );
}

#[test]
fn a_layout_carries_a_tag_and_is_another_layout_with_it() {
    let plain = DeviceLayout::new(4096, 256).unwrap();

    let tagged = plain.with_tag(Tag::WEIGHTS);

    assert_eq!(plain.tag(), Tag::NONE);
    assert_eq!(tagged.tag(), Tag::WEIGHTS);
    assert_eq!((tagged.size(), tagged.align()), (4096, 256));
    assert_ne!(tagged, plain);
    assert_eq!(tagged.with_tag(Tag::NONE), plain);
    assert_eq!(
        format!("{tagged:?}"),
        "DeviceLayout { size: 4096, align: 256, tag: weights }"
    );
    assert_eq!(
        format!("{plain:?}"),
        "DeviceLayout { size: 4096, align: 256 }"
    );
}

#[test]
fn every_alignment_survives_beside_every_built_in_tag() {
    let tags = [
        Tag::NONE,
        Tag::WEIGHTS,
        Tag::ACTIVATIONS,
        Tag::KV_CACHE,
        Tag::SCRATCH,
        Tag::SCRATCH.persistent(),
    ];

    for exponent in 0..62 {
        for tag in tags {
            let layout = DeviceLayout::new(1, 1 << exponent).unwrap().with_tag(tag);

            assert_eq!((layout.align(), layout.tag()), (1 << exponent, tag));
        }
    }
}

#[test]
fn a_buffer_keeps_its_tag_whether_its_handle_is_counted_or_not() {
    let layout = DeviceLayout::new(64, 64).unwrap().with_tag(Tag::KV_CACHE);

    let counted = DeviceMemoryBuffer::create_with(Arc::new(HostAllocator), layout, 0).unwrap();
    let forever = DeviceMemoryBuffer::create_with(&HostAllocator, layout, 0).unwrap();

    assert_eq!(counted.layout(), layout);
    assert_eq!(forever.layout(), layout);
}

#[test]
fn tags_are_named_once_and_only_so_many() {
    assert_eq!(Tag::named("none"), Ok(Tag::NONE));
    assert_eq!(Tag::named("weights"), Ok(Tag::WEIGHTS));
    assert_eq!(Tag::named("scratch"), Ok(Tag::SCRATCH));
    let made: Vec<_> = (0..Tag::LIMIT)
        .map(|n| Tag::named(&format!("made{n}")).unwrap())
        .collect();

    let error = Tag::named("one too many").unwrap_err();

    assert_eq!(
        error.to_string(),
        "no more than 123 tags can be named in a process"
    );
    for (n, tag) in made.iter().enumerate() {
        assert_eq!(tag.name(), format!("made{n}"));
        assert_eq!(Tag::named(tag.name()), Ok(*tag));
        assert!(!tag.is_persistent() && tag.persistent().is_persistent());
        assert_eq!(tag.persistent().name(), tag.name());
    }
}

#[test]
fn a_report_says_what_the_memory_was_for_and_what_was_tried() {
    let layout = DeviceLayout::new(64, 64).unwrap().with_tag(Tag::KV_CACHE);
    let mut report = OutOfMemory::new(Device::CPU, layout);
    report.device_free = Some(8);
    report.tried = vec![
        Attempt::Search,
        Attempt::Drain,
        Attempt::Trim,
        Attempt::Upstream,
        Attempt::Hook,
    ];

    let error = Error::from(report);

    assert_eq!(
        error.to_string(),
        "out of memory on cpu:0: 64 bytes requested (align 64, tag kv_cache), \
         8 free on the device; tried search, drain, trim, upstream, hook"
    );
}
