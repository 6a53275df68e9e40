package import ApusCore
package import ApusTraversal
import CApusNet
import Glibc
import Synchronization

/// A thread of its own, outside the Swift pool, which its owner joins.
///
/// Concurrency model: ``join()`` from any other thread; the first call waits.
package final class RelayThread: Sendable {
    private final class Body {
        let name: String
        let run: @Sendable () -> Void
        init(name: String, run: @escaping @Sendable () -> Void) {
            self.name = name
            self.run = run
        }
    }

    private let handle: pthread_t
    private let isJoined = Atomic<Bool>(false)

    /// - Parameter name: seen in `top -H`; its first 15 bytes count.
    /// - Throws: 10018 where the system gives no more threads.
    package init(name: String, _ run: @escaping @Sendable () -> Void) throws(ApusError) {
        // SAFETY: the box is released exactly once, by the new thread, or here where none was started.
        let box = Unmanaged.passRetained(Body(name: name, run: run))
        var handle = pthread_t()
        let result = pthread_create(
            &handle, nil,
            { argument in
                guard let argument else { return nil }
                // SAFETY: the argument is the box passed below.
                let body = Unmanaged<Body>.fromOpaque(argument).takeRetainedValue()
                apus_net_thread_name(body.name)
                body.run()
                return nil
            }, box.toOpaque())
        guard result == 0 else {
            box.release()
            throw ApusError(.internalFailure, "the system gives no thread (errno \(result))")
        }
        self.handle = handle
    }

    /// Waits for the thread's end.
    package func join() {
        guard !isJoined.exchange(true, ordering: .relaxed) else { return }
        pthread_join(handle, nil)
    }

    deinit {
        if !isJoined.exchange(true, ordering: .relaxed) { pthread_detach(handle) }
    }
}

/// A running plane: its thread, its doors' addresses and its link.
///
/// Concurrency model: ``stop()`` from any thread but the plane's own; ``link`` as it says.
package final class PlaneThread: Sendable {
    package let link: PlaneLink
    /// The addresses of the doors, with the ports that the system chose for 0.
    package let datagramAddresses: [TransportAddress]
    package let streamAddresses: [TransportAddress]
    private let thread: RelayThread

    /// The plane on its way into its thread.
    private final class Handover: @unchecked Sendable {
        // SAFETY: written before the thread starts, taken by the thread once; starting a thread orders the two.
        var plane: PacketPlane?
        init(_ plane: consuming PacketPlane) { self.plane = consume plane }
    }

    /// Opens the doors and starts the thread.
    ///
    /// - Parameter control: wakes the thread that takes the events.
    /// - Throws: 10019 where an address is in use, 10018 for any other refusal of the system.
    package init(index: UInt8, configuration: PlaneConfiguration, control: Waker) throws(ApusError) {
        let link = PlaneLink(
            index: index, capacity: configuration.ringCapacity, plane: try Waker.make(), control: control)
        let plane = try PacketPlane(
            configuration: configuration, link: link, seed: UInt64.random(in: .min ... .max))
        let addresses = plane.boundAddresses
        datagramAddresses = addresses.datagrams
        streamAddresses = addresses.streams
        self.link = link
        let handover = Handover(plane)
        thread = try RelayThread(name: "relay-\(index)") {
            guard var plane = handover.plane.take() else { return }
            plane.run()
        }
    }

    /// Ends the plane: its sockets are closed when this returns.
    package func stop() {
        link.stop()
        thread.join()
    }
}

extension Waker {
    /// - Throws: 10018 where the system gives no descriptor.
    package static func make() throws(ApusError) -> Waker {
        let descriptor = apus_wake_open()
        guard descriptor >= 0 else {
            throw ApusError(.internalFailure, "the system gives no descriptor (errno \(-descriptor))")
        }
        return Waker(descriptor: descriptor)
    }
}
