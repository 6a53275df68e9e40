package import ApusCore
import ApusThreads
package import ApusTraversal
import CApusNet
import Synchronization

/// What decides: the machine of the protocol with what it needs around it.
///
/// Concurrency model: confined to the control thread.
package protocol RelayController: Sendable {
    /// Something happened at a plane; commands are added in the order in which planes shall have them.
    mutating func handle(
        _ event: PlaneEvent, from plane: UInt8, now: MonotonicTime,
        into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// The rest of the node wants something.
    mutating func handle(
        _ order: RelayOrder, now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// Time went by; called about every ``RelayControl/tickInterval`` while there are events, and else when
    /// ``nextTick(now:)`` says. After a sleep it comes before the events.
    mutating func tick(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// The process ends: ends a part of what lives; called again, with the planes' counters between, until ``isEmpty``.
    mutating func wind(
        down now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// Whether nothing lives and nothing is waited for.
    var isEmpty: Bool { get }
    /// The last call: nothing more is waited for.
    mutating func finish(now: MonotonicTime)
    /// When the next tick has something to do; nil if it has none until an event comes.
    func nextTick(now: MonotonicTime) -> MonotonicTime?
    /// Whether work is left that is done in steps, between which events have their turn.
    var hasWork: Bool { get }
    /// One step of it.
    mutating func work(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
}

extension RelayController {
    /// Every interval, whether there is something to do or not.
    package func nextTick(now: MonotonicTime) -> MonotonicTime? { now + RelayControl.tickInterval }

    package var hasWork: Bool { false }
    package mutating func work(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]) {}

    /// Nothing that lives here has to be ended.
    package var isEmpty: Bool { true }
    package mutating func wind(
        down now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {}
    package mutating func finish(now: MonotonicTime) {}
}

/// The control thread of a node's relay: takes the events of all planes and hands their commands down (D8).
///
/// It runs beside the planes and never makes one wait: a plane whose ring of events is full drops and
/// counts. Commands are never dropped; where a plane has as many as it takes, control waits for it.
///
/// Concurrency model: ``stop()`` from any thread but the control thread's own.
package final class RelayControl: Sendable {
    /// How often time is told.
    package static let tickInterval = Duration.milliseconds(100)
    /// Events of one plane before the next has its turn.
    private static let eventsPerRound = 256
    /// Messages of all planes' clients without an allocation before the events of allocations have their turn again: a
    /// millisecond or two of work.
    private static let unauthenticatedPerRound = 64
    /// How long control waits for a plane that takes no commands before it says that the plane hangs.
    private static let commandWaitMax = Duration.seconds(5)
    /// How long the end of the process waits for what planes have still to tell.
    package static let windDownMax = Duration.seconds(1)

    package let planes: [PlaneThread]
    private let waker: Waker
    private let inbox = RelayInbox()
    private let thread: OSThread
    private let isStopping: Flag

    private final class Flag: Sendable {
        let value = Atomic<Bool>(false)
    }

    /// Starts planes and control.
    ///
    /// - Parameters:
    ///   - planeCount: planes, one thread each; about one per core.
    ///   - make: makes the controller when the doors are open, with the addresses of the datagram and of the
    ///     stream doors.
    /// - Throws: 10019 if an address is in use, 10018 for any other refusal of the system.
    package init<Controller: RelayController>(
        planeCount: Int, configuration: PlaneConfiguration,
        make: ([TransportAddress], [TransportAddress]) -> Controller
    ) throws(ApusError) {
        apus_raise_descriptors()
        let waker = try Waker.make()
        var planes: [PlaneThread] = []
        do {
            var configuration = configuration
            for index in 0..<max(1, min(planeCount, 64)) {
                let plane = try PlaneThread(index: UInt8(index), configuration: configuration, control: waker)
                // The others share the ports that the system chose for the first.
                configuration.datagramAddresses = plane.datagramAddresses
                configuration.streamAddresses = plane.streamAddresses
                configuration.secureStreamAddresses = plane.secureStreamAddresses
                configuration.secureDatagramAddresses = plane.secureDatagramAddresses
                planes.append(plane)
            }
            let controller = make(configuration.datagramAddresses, configuration.streamAddresses)
            let flag = Flag()
            let links = planes.map(\.link)
            let inbox = inbox
            thread = try OSThread(name: "relay-control") {
                var loop = Loop(controller: controller, links: links, waker: waker, inbox: inbox)
                loop.run(until: { flag.value.load(ordering: .sequentiallyConsistent) })
            }
            isStopping = flag
        } catch {
            for plane in planes { plane.stop() }
            throw error
        }
        self.planes = planes
        self.waker = waker
    }

    /// Hands an order to control, from any thread; false if as many wait as may.
    package func order(_ order: RelayOrder) -> Bool {
        guard inbox.push(order) else { return false }
        waker.wake()
        return true
    }

    /// Ends what lives, for ``windDownMax`` at most, then control, then the planes.
    package func stop() {
        isStopping.value.store(true, ordering: .sequentiallyConsistent)
        waker.wake()
        thread.join()
        inbox.close()
        for plane in planes { plane.stop() }
    }

    private struct Loop<Controller: RelayController> {
        var controller: Controller
        let links: [PlaneLink]
        let waker: Waker
        let inbox: RelayInbox
        var commands: [(plane: UInt8, command: PlaneCommand)] = []

        mutating func run(until isStopping: () -> Bool) {
            let poll = apus_poll_open()
            guard poll >= 0 else { return }
            defer { apus_close(poll) }
            _ = apus_poll_add(poll, waker.descriptor, UInt32(APUS_READABLE), 0)
            var lastTick = MonotonicTime.now()
            while !isStopping() {
                waker.willSleep()
                let isQuiet =
                    links.allSatisfy(\.isQuiet) && inbox.isEmpty && !controller.hasWork && !isStopping()
                let milliseconds = isQuiet ? timeout(since: lastTick) : 0
                var ready = apus_ready()
                let woken = apus_poll_wait(poll, &ready, 1, milliseconds)
                waker.didWake()
                if woken > 0 { waker.clear() }
                let now = MonotonicTime.now()
                if now - lastTick >= RelayControl.tickInterval {
                    lastTick = now
                    controller.tick(now: now, into: &commands)
                    handDown()
                }
                for link in links { take(link, now) }
                for link in links { takeUnauthenticated(link, now) }
                for order in inbox.take() { controller.handle(order, now: now, into: &commands) }
                handDown()
                guard controller.hasWork else { continue }
                controller.work(now: now, into: &commands)
                handDown()
            }
            windDown(poll)
        }

        /// Ends what lives, while the planes still run, so that each life is told with all that it carried.
        private mutating func windDown(_ poll: Int32) {
            let deadline = MonotonicTime.now() + RelayControl.windDownMax
            while !controller.isEmpty, MonotonicTime.now() < deadline {
                controller.wind(down: .now(), into: &commands)
                handDown()
                waker.willSleep()
                var ready = apus_ready()
                let milliseconds: Int32 = links.allSatisfy(\.events.isEmpty) ? 10 : 0
                if apus_poll_wait(poll, &ready, 1, milliseconds) > 0 { waker.clear() }
                waker.didWake()
                for link in links {
                    for _ in 0..<RelayControl.eventsPerRound {
                        guard let event = link.events.pop() else { break }
                        switch event {
                        case .counters, .peerCarried:
                            controller.handle(event, from: link.index, now: .now(), into: &commands)
                        case .peerArrived(_, _, let socket), .peerConnected(_, let socket):
                            if socket >= 0 { RelaySocket.close(socket) }
                        // What clients still ask for has no answer any more.
                        default: break
                        }
                    }
                }
            }
            controller.finish(now: .now())
        }

        /// Milliseconds until a tick has something to do, but not before the interval is over; -1 if only an event
        /// brings something.
        private func timeout(since lastTick: MonotonicTime) -> Int32 {
            let now = MonotonicTime.now()
            guard let next = controller.nextTick(now: now) else { return -1 }
            let wait = max(next, lastTick + RelayControl.tickInterval) - now
            return Int32(clamping: Int(max(0, wait.milliseconds).rounded(.up)))
        }

        private mutating func take(_ link: PlaneLink, _ now: MonotonicTime) {
            for _ in 0..<RelayControl.eventsPerRound {
                guard let event = link.events.pop() else { break }
                controller.handle(event, from: link.index, now: now, into: &commands)
            }
            handDown()
        }

        private mutating func takeUnauthenticated(_ link: PlaneLink, _ now: MonotonicTime) {
            for _ in 0..<max(1, RelayControl.unauthenticatedPerRound / links.count) {
                guard let event = link.unauthenticated.pop() else { break }
                controller.handle(event, from: link.index, now: now, into: &commands)
            }
            handDown()
        }

        private mutating func handDown() {
            for (plane, command) in commands where Int(plane) < links.count {
                let deadline = MonotonicTime.now() + RelayControl.commandWaitMax
                while !links[Int(plane)].command(command) {
                    guard MonotonicTime.now() < deadline else { break }
                    apus_pause()
                }
            }
            commands.removeAll(keepingCapacity: true)
        }
    }
}
