package import ApusCore
package import ApusTraversal
import ApusThreads
import CApusNet
import Synchronization

/// A running plane: its thread, its doors' addresses and its link.
///
/// Concurrency model: ``stop()`` from any thread but the plane's own; ``link`` as it says.
package final class PlaneThread: Sendable {
    package let link: PlaneLink
    /// The addresses of the doors, with the ports that the system chose for 0.
    package let datagramAddresses: [TransportAddress]
    package let streamAddresses: [TransportAddress]
    package let secureStreamAddresses: [TransportAddress]
    package let secureDatagramAddresses: [TransportAddress]
    private let thread: OSThread

    /// The plane on its way into its thread.
    private final class Handover: Sendable {
        private let plane: Mutex<PacketPlane?>
        init(_ plane: consuming sending PacketPlane) { self.plane = Mutex(consume plane) }
        func take() -> sending PacketPlane? { plane.withLock { $0.take() } }
    }

    /// Opens the doors and starts the thread.
    ///
    /// - Parameter control: wakes the thread that takes the events.
    /// - Throws: 10019 if an address is in use, 10007 if the system has no descriptor or memory for it, 10018 for
    ///   any other refusal of the system.
    package init(index: UInt8, configuration: PlaneConfiguration, control: Waker) throws(ApusError) {
        let link = PlaneLink(
            index: index, capacity: configuration.ringCapacity, plane: try Waker.make(), control: control)
        let plane = try PacketPlane(
            configuration: configuration, link: link, seed: UInt64.random(in: .min ... .max))
        let addresses = plane.boundAddresses
        datagramAddresses = addresses.datagrams
        streamAddresses = addresses.streams
        secureStreamAddresses = addresses.secureStreams
        secureDatagramAddresses = addresses.secureDatagrams
        self.link = link
        let handover = Handover(plane)
        thread = try OSThread(name: "relay-\(index)") {
            guard var plane = handover.take() else { return }
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
    /// - Throws: 10018 if the system gives no descriptor.
    package static func make() throws(ApusError) -> Waker {
        let descriptor = apus_wake_open()
        guard descriptor >= 0 else {
            throw ApusError(.internalFailure, "the system gives no descriptor (errno \(-descriptor))")
        }
        return Waker(descriptor: descriptor)
    }
}
