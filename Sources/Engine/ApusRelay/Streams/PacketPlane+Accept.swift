import ApusCore
import ApusTraversal
import CApusNet
import Glibc

/// A plane's state for the case that there is no descriptor for another connection.
struct AcceptPause {
    /// More than one, since another thread may take a released descriptor.
    static let sparesMax = 4
    /// Reserved descriptors, which are closed when one is needed and opened again afterwards; fewer if the system had
    /// none.
    private(set) var spares: [Int32] = []
    /// Until this time nothing is accepted; nil while the plane accepts.
    var until: UInt64?
    var backoff = AcceptBackoff()
    /// Listeners of TCP allocations that are not polled.
    var peerListeners: [(slot: Int, generation: UInt32, isSecond: Bool)] = []

    mutating func keepSpares() {
        while spares.count < Self.sparesMax {
            let spare = apus_spare_open()
            guard spare >= 0 else { return }
            spares.append(spare)
        }
    }

    mutating func giveSpare() -> Bool {
        guard let spare = spares.popLast() else { return false }
        apus_close(spare)
        return true
    }
}

/// Accepts connections of clients and of peers, even if the process or the system has no descriptor left (EMFILE,
/// ENFILE, ENOBUFS, ENOMEM).
///
/// The poll reports a listener as long as a connection waits, and a connection that cannot be accepted would wait
/// forever: the plane would spin. All waiting connections are therefore refused, with a reserved descriptor, and the
/// listeners are not polled until a pause is over (``AcceptBackoff``). Allocations and existing connections continue in
/// the meantime.
extension PacketPlane {
    enum Accepted {
        case connection(socket: Int32, remote: TransportAddress?)
        /// No connection waits.
        case none
        /// A connection waits, and there is no descriptor or memory for it.
        case exhausted
    }

    /// The most connections that are refused at once: the length of a listener's queue.
    private static var refusedAtOnceMax: Int { 1_024 }

    /// The next connection of a listener, with its remote address.
    static func accept(_ listener: Int32) -> Accepted {
        var storage = sockaddr_in6()
        var length = socklen_t(MemoryLayout<sockaddr_in6>.size)
        // SAFETY: the kernel writes at most `length` bytes into the storage, and 28 are read.
        return withUnsafeMutableBytes(of: &storage) { bytes in
            let address = bytes.baseAddress.unsafelyUnwrapped
            let socket = apus_stream_accept(listener, address.assumingMemoryBound(to: sockaddr.self), &length)
            if socket >= 0 { return .connection(socket: socket, remote: RawAddress.read(address)) }
            return RelaySocket.isExhaustion(-socket) ? .exhausted : .none
        }
    }

    /// Refuses the connections that wait at a listener, and pauses.
    mutating func refuseWaiting(at listener: Int32) {
        accepting.keepSpares()
        var hasDescriptor = accepting.giveSpare()
        for _ in 0..<Self.refusedAtOnceMax where hasDescriptor {
            switch Self.accept(listener) {
            case .connection(let socket, _):
                apus_close(socket)
                counters.exhaustedStreams &+= 1
            case .none: hasDescriptor = false
            case .exhausted: hasDescriptor = accepting.giveSpare()
            }
        }
        accepting.keepSpares()
        counters.exhaustions &+= 1
        guard accepting.until == nil else { return }
        accepting.until = accepting.backoff.exhausted(at: MonotonicTime(nanoseconds: now)).nanoseconds
        for index in 0..<streamListenerCount { _ = apus_poll_remove(poll, streamListeners[index].socket) }
    }

    /// Stops polling the listener of a TCP allocation until the pause is over.
    mutating func parkPeerListener(_ slot: Int, isSecond: Bool) {
        let row = allocations.rows + slot
        _ = apus_poll_remove(poll, isSecond ? row.pointee.second : row.pointee.socket)
        accepting.peerListeners.append((slot, row.pointee.generation, isSecond))
    }

    /// Accepts again if the pause is over. Called with each tick, which limits the accuracy of a pause.
    mutating func resumeAccepting(_ now: UInt64) {
        guard let until = accepting.until, now >= until else { return }
        accepting.until = nil
        accepting.keepSpares()
        for index in 0..<streamListenerCount {
            _ = apus_poll_add(poll, streamListeners[index].socket, Self.readable, Self.token(.connections, 0, index))
        }
        for (slot, generation, isSecond) in accepting.peerListeners {
            let row = allocations.rows + slot
            guard row.pointee.isLive, row.pointee.generation == generation else { continue }
            let kind: Kind = isSecond ? .secondPeerListener : .peerListener
            _ = apus_poll_add(
                poll, isSecond ? row.pointee.second : row.pointee.socket, Self.readable,
                Self.token(kind, generation, slot))
        }
        accepting.peerListeners.removeAll()
    }
}
