//! When work is done.

use super::call::Call;
use super::code::{Code, Done};
use super::operation::{HostFunction, Operation};
use super::settings::Schedule;
use super::state::RETURNED;
use super::stream::{Ticket, Work, everything, implied_needs};
use super::{call, capture, pool, thread};

/// How much work a stream takes on before it does the oldest.
const DEPTH: usize = 1024;

impl Call {
    /// Gives work to a stream, which has been resolved.
    pub(super) fn submit(&mut self, stream: u64, operation: Operation) -> Done<Ticket> {
        self.submit_after(stream, Vec::new(), operation)
    }

    /// The same, for work that waits for more than its stream.
    pub(super) fn submit_after(
        &mut self,
        stream: u64,
        mut needs: Vec<Ticket>,
        operation: Operation,
    ) -> Done<Ticket> {
        if self.captures != 0 && capture::absorbs(self, stream)? {
            return Ok(Ticket { stream, number: 0 });
        }
        if self.pending != 0 {
            needs.extend(implied_needs(self, stream));
        }
        let queue = self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        queue.submitted += 1;
        queue.queue.push_back(Work { needs, operation });
        let waiting = queue.queue.len();
        let ticket = Ticket {
            stream,
            number: queue.submitted,
        };
        self.pending += 1;
        if self.settings.schedule == Schedule::Eager {
            self.run(ticket, false);
        } else if waiting > DEPTH {
            self.run_to(Ticket {
                number: ticket.number - DEPTH as u64,
                ..ticket
            });
        }
        Ok(ticket)
    }

    /// Whether all work up to a ticket is done.
    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        let stream = self.streams.get(&ticket.stream);
        stream.is_none_or(|stream| stream.completed >= ticket.number)
    }

    /// Does all work up to a ticket, and what that waits for.
    pub(super) fn run_to(&mut self, ticket: Ticket) {
        self.run(ticket, true);
    }

    /// The same, or only so far as no function of the program runs.
    fn run(&mut self, ticket: Ticket, wait: bool) {
        let mut goals = vec![ticket];
        while let Some(goal) = goals.last().copied() {
            if self.is_done(goal) {
                goals.pop();
            } else if self.is_busy(goal.stream) {
                if !wait {
                    return;
                }
                RETURNED.wait(&mut self.state);
            } else if let Some(need) = self.next_need(goal.stream) {
                goals.push(need);
            } else {
                self.step(goal.stream);
            }
        }
    }

    /// Does all work of a stream so far.
    pub(super) fn finish_stream(&mut self, stream: u64) {
        if let Some(ticket) = everything(self, stream) {
            self.run_to(ticket);
        }
    }

    /// Does all work of a context so far.
    pub(super) fn finish_context(&mut self, context: u64) {
        self.finish_where(|call, stream| {
            let stream = call.streams.get(&stream);
            stream.is_some_and(|stream| stream.context == context)
        });
    }

    /// Does all work of a device so far.
    pub(super) fn finish_device(&mut self, device: usize) {
        self.finish_where(|call, stream| {
            let stream = call.streams.get(&stream);
            stream.is_some_and(|stream| stream.device == device)
        });
    }

    /// Does all work.
    pub(super) fn finish_all(&mut self) {
        self.finish_where(|_, _| true);
    }

    fn finish_where(&mut self, wanted: impl Fn(&Self, u64) -> bool) {
        if self.pending == 0 {
            return;
        }
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            if wanted(self, stream) {
                self.finish_stream(stream);
            }
        }
    }

    /// After the program has waited: pools give back what they need not hold.
    pub(super) fn waited(&mut self) {
        pool::shrink_all(self);
    }

    /// Does one piece of work of a stream, or of one that it waits for.
    pub(super) fn nudge(&mut self, stream: u64) {
        let stream = self.first_needed(stream);
        self.step(stream);
    }

    /// The stream that has to go on for this one to go on.
    fn first_needed(&self, stream: u64) -> u64 {
        let mut stream = stream;
        while let Some(need) = self.next_need(stream) {
            stream = need.stream;
        }
        stream
    }

    /// Does none, some or much of the work that waits, as chance has it.
    pub(super) fn run_some(&mut self) {
        let steps = self.roll() % 4;
        self.run_steps(steps);
    }

    /// Does some pieces of work of streams taken by chance. Functions of the
    /// program run only when something waits for them, so that the order of the
    /// rest is the same each time.
    pub(super) fn run_steps(&mut self, steps: u64) {
        for _ in 0..steps {
            let busy = self.streams.iter().filter(|(_, stream)| !stream.is_idle());
            let busy: Vec<u64> = busy.map(|(handle, _)| *handle).collect();
            if busy.is_empty() {
                return;
            }
            let chosen = self.roll() as usize % busy.len();
            let stream = busy.get(chosen).map(|stream| self.first_needed(*stream));
            if let Some(stream) = stream.filter(|stream| !self.is_at_host_function(*stream)) {
                self.step(stream);
            }
        }
    }

    /// What the next piece of work of a stream waits for.
    fn next_need(&self, stream: u64) -> Option<Ticket> {
        let work = self.streams.get(&stream)?.queue.front()?;
        let mut needs = work.needs.iter().copied();
        needs.find(|need| !self.is_done(*need))
    }

    /// Does the next piece of work of a stream, which waits for nothing, or
    /// begins it.
    fn step(&mut self, handle: u64) {
        let Some(stream) = self.streams.get_mut(&handle).filter(|stream| !stream.busy) else {
            return;
        };
        let Some(work) = stream.queue.pop_front() else {
            return;
        };
        if let Operation::Host { function } = work.operation {
            stream.busy = true;
            start(handle, function);
        } else {
            self.perform(work.operation);
            self.complete(handle);
        }
    }

    /// Counts the piece of work that a stream has come to the end of.
    fn complete(&mut self, handle: u64) {
        let Some(stream) = self.streams.get_mut(&handle) else {
            return;
        };
        stream.busy = false;
        stream.completed += 1;
        if stream.destroyed && stream.is_idle() {
            self.streams.remove(&handle);
        }
        self.pending -= 1;
    }

    fn is_busy(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.busy)
    }

    /// Whether the next piece of work of a stream is a function of the program.
    fn is_at_host_function(&self, stream: u64) -> bool {
        let next = self
            .streams
            .get(&stream)
            .and_then(|stream| stream.queue.front());
        next.is_some_and(|work| matches!(work.operation, Operation::Host { .. }))
    }
}

/// Runs a function of the program on a thread of the driver.
fn start(stream: u64, function: HostFunction) {
    let run = move || {
        thread::set_in_callback(true);
        function.run();
        thread::set_in_callback(false);
        let mut call = call::outside();
        call.complete(stream);
        if call.settings.schedule == Schedule::Eager {
            let streams: Vec<u64> = call.streams.keys().copied().collect();
            for stream in streams {
                if let Some(ticket) = everything(&call, stream) {
                    call.run(ticket, false);
                }
            }
        }
        RETURNED.notify_all();
    };
    // A function that no thread can be had for is never run, as on a driver
    // that is out of threads; who waits for it waits for ever.
    let _ = std::thread::Builder::new().spawn(run);
}
