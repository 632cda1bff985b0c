//! What happened is written down in order, and writing never stands in the way.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};

use device_memory::adaptor::{Action, Event, Log};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation};

fn fake() -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .reuse_addresses(true)
        .build()
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// A writer that the test reads.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that fails, or panics.
struct Broken(bool);

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        assert!(!self.0, "the writer panics");
        Err(io::Error::other("disk full"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::Error::other("disk full"))
    }
}

#[test]
fn lines_have_the_columns_that_replay_tools_read() {
    let page = Page::default();
    let injector = FaultInjector::new(fake());
    let faults = injector.faults();
    let log = Arc::new(Log::csv(injector, page.clone()));
    let buffer = DeviceMemoryBuffer::create_with(log.clone(), layout(1024), 0).unwrap();
    let ptr = buffer.ptr();
    faults.fail_nth(Operation::Allocate, 1);
    faults.fail_nth(Operation::Deallocate, 1);

    DeviceMemoryBuffer::create_with(log.clone(), layout(77), 0).unwrap_err();
    buffer.free().unwrap_err().buffer.free().unwrap();

    let text = page.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Thread,Time,Action,Pointer,Size,Stream"));
    let mut rest = Vec::new();
    for line in lines {
        let columns: Vec<&str> = line.split(',').collect();
        assert_eq!(columns.len(), 6, "{line}");
        columns[0].parse::<u64>().unwrap();
        let time: Vec<&str> = columns[1].split([':', '.']).collect();
        assert_eq!(
            time.iter().map(|part| part.len()).collect::<Vec<_>>(),
            [2, 2, 2, 6]
        );
        rest.push(columns[2..].join(","));
    }
    assert_eq!(
        rest,
        [
            format!("allocate,{ptr},1024,0x0"),
            "allocate failure,0x0,77,0x0".to_owned(),
            format!("free,{ptr},1024,0x0"),
            format!("free failure,{ptr},1024,0x0"),
            format!("free,{ptr},1024,0x0"),
        ]
    );
}

#[test]
fn a_writer_that_fails_or_panics_fails_no_allocation_and_is_counted() {
    for panics in [false, true] {
        let log = Arc::new(Log::csv(fake(), Broken(panics)));

        let buffer = DeviceMemoryBuffer::create_with(log.clone(), layout(64), 0).unwrap();
        buffer.free().unwrap();

        assert_eq!(log.lost(), 2);
        log.flush();
        assert_eq!(log.lost(), 3);
    }
}

#[test]
fn events_of_eight_threads_are_all_written_and_no_address_is_allocated_twice() {
    let page = Page::default();
    let log = Arc::new(Log::csv(fake(), page.clone()));

    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    drop(DeviceMemoryBuffer::create_with(log.clone(), layout(64), 0).unwrap());
                }
            });
        }
    });
    log.flush();

    let text = page.text();
    let mut live = std::collections::HashSet::new();
    let mut count = 0;
    for line in text.lines().skip(1) {
        let columns: Vec<&str> = line.split(',').collect();
        match columns[2] {
            "allocate" => assert!(live.insert(columns[3].to_owned()), "{line}"),
            _ => assert!(live.remove(columns[3]), "{line}"),
        }
        count += 1;
    }
    assert_eq!((count, live.len(), log.lost()), (3200, 0, 0));
}

#[test]
fn the_program_may_be_called_instead() {
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    let kept = events.clone();
    let log = Log::calling(fake(), move |event| kept.lock().unwrap().push(*event));
    let log = Arc::new(log);

    drop(DeviceMemoryBuffer::create_with(log, layout(64), 0).unwrap());

    let actions: Vec<Action> = events
        .lock()
        .unwrap()
        .iter()
        .map(|event| event.action)
        .collect();
    assert_eq!(actions, [Action::Allocate, Action::Free]);
}

#[test]
fn a_slow_sink_slows_one_thread_which_writes_the_events_of_all() {
    let (enter, entered) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let written: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let by = written.clone();
    let log = Log::calling(fake(), move |_| {
        let mut by = by.lock().unwrap();
        by.push(thread::current().id());
        if by.len() == 1 {
            drop(by);
            enter.send(()).unwrap();
            gate.recv().unwrap();
        }
    });
    let log = Arc::new(log);
    let come_and_go = || drop(DeviceMemoryBuffer::create_with(log.clone(), layout(64), 0).unwrap());

    let slow = thread::scope(|scope| {
        let slow = scope.spawn(come_and_go);
        entered.recv().unwrap();
        for _ in 0..10 {
            come_and_go();
        }
        assert_eq!(written.lock().unwrap().len(), 1);
        open.send(()).unwrap();
        let id = slow.thread().id();
        slow.join().unwrap();
        id
    });

    let written = written.lock().unwrap();
    assert_eq!((written.len(), log.lost()), (22, 0));
    assert!(written.iter().all(|by| *by == slow));
}
