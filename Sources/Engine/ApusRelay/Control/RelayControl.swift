package import ApusCore
import ApusThreads
package import ApusTraversal
import CApusNet
import Synchronization

/// The logic of the control thread: the protocol's machine with its environment.
///
/// Concurrency model: confined to the control thread.
package protocol RelayController: Sendable {
    /// Handles an event of a plane. Commands are added in the order in which the planes must receive them.
    mutating func handle(
        _ event: PlaneEvent, from plane: UInt8, now: MonotonicTime,
        into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// Handles an order from the rest of the node.
    mutating func handle(
        _ order: RelayOrder, now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// Time has passed. Called about every ``RelayControl/tickInterval`` while there are events, otherwise at
    /// ``nextTick(now:)``. After a sleep it is called before the events.
    mutating func tick(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// Shutdown: ends a part of the allocations. Called repeatedly, with the planes' reports in between, until
    /// ``isEmpty``.
    mutating func wind(
        down now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
    /// True if there is no allocation left, and nothing is awaited.
    var isEmpty: Bool { get }
    /// The last call of a shutdown. Nothing is awaited any more.
    mutating func finish(now: MonotonicTime)
    /// The time of the next tick; nil if none is needed before an event.
    func nextTick(now: MonotonicTime) -> MonotonicTime?
    /// True if stepwise work is left. Events are handled between its steps.
    var hasWork: Bool { get }
    /// Does one step of it.
    mutating func work(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)])
}

extension RelayController {
    /// Every interval, whether needed or not.
    package func nextTick(now: MonotonicTime) -> MonotonicTime? { now + RelayControl.tickInterval }

    package var hasWork: Bool { false }
    package mutating func work(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]) {}

    /// There are no allocations to end.
    package var isEmpty: Bool { true }
    package mutating func wind(
        down now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {}
    package mutating func finish(now: MonotonicTime) {}
}

/// The control thread of a node's relay: receives the events of all planes and sends them commands (D8).
///
/// It runs beside the planes and never blocks one: a plane whose ring of events is full drops and counts. Commands are
/// never dropped: if a plane's ring is full, control waits.
///
/// Concurrency model: ``stop()`` from any thread except the control thread.
package final class RelayControl: Sendable {
    /// The interval between ticks.
    package static let tickInterval = Duration.milliseconds(100)
    /// Events of one plane before those of the next are handled.
    private static let eventsPerRound = 256
    /// Messages of clients without an allocation, over all planes, before the events of allocations are handled again:
    /// a millisecond or two of work.
    private static let unauthenticatedPerRound = 64
    /// How long control waits for a plane that accepts no commands before it reports that the plane hangs.
    private static let commandWaitMax = Duration.seconds(5)
    /// How long the shutdown waits for the planes' last reports.
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
    ///   - planeCount: the number of planes, with one thread each; about one per core.
    ///   - make: makes the controller when the listeners are open, with the addresses of the datagram and of the
    ///     stream listeners.
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

    /// Sends an order to control. Call from any thread. Returns false if the queue is full.
    package func order(_ order: RelayOrder) -> Bool {
        guard inbox.push(order) else { return false }
        waker.wake()
        return true
    }

    /// Ends all allocations, within ``windDownMax``, then stops control, then the planes.
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

        /// Ends all allocations while the planes still run, so that each is reported with its final counters.
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
                        // New requests of clients are not answered any more.
                        default: break
                        }
                    }
                }
            }
            controller.finish(now: .now())
        }

        /// Milliseconds until a tick is needed, but at least until the end of the interval; -1 if none is needed before
        /// an event.
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
