package import ApusCore
package import ApusTraversal
import ApusThreads
import CApusNet
import Synchronization

/// A running plane: its thread, its listeners' addresses and its link.
///
/// Concurrency model: ``stop()`` from any thread except the plane's own; ``link`` as documented there.
package final class PlaneThread: Sendable {
    package let link: PlaneLink
    /// The listeners' addresses, with the ports that the system chose for 0.
    package let datagramAddresses: [TransportAddress]
    package let streamAddresses: [TransportAddress]
    package let secureStreamAddresses: [TransportAddress]
    package let secureDatagramAddresses: [TransportAddress]
    private let thread: OSThread

    /// Passes the plane to its thread.
    private final class Handover: Sendable {
        private let plane: Mutex<PacketPlane?>
        init(_ plane: consuming sending PacketPlane) { self.plane = Mutex(consume plane) }
        func take() -> sending PacketPlane? { plane.withLock { $0.take() } }
    }

    /// Opens the listeners and starts the thread.
    ///
    /// - Parameter control: wakes the thread that receives the events.
    /// - Throws: 10019 if an address is in use, 10007 if the system has no descriptor or memory for it, 10018 for any
    ///   other refusal of the system.
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

    /// Stops the plane. Its sockets are closed when this returns.
    package func stop() {
        link.stop()
        thread.join()
    }
}

extension Waker {
    /// - Throws: 10018 if the system cannot create a descriptor.
    package static func make() throws(ApusError) -> Waker {
        let descriptor = apus_wake_open()
        guard descriptor >= 0 else {
            throw ApusError(.internalFailure, "the system cannot create a descriptor (errno \(-descriptor))")
        }
        return Waker(descriptor: descriptor)
    }
}
