package import ApusCore
package import ApusTraversal
import CApusNet
import Glibc

/// Opens the sockets of allocations and listeners.
package enum RelaySocket {
    /// A bound socket for an allocation, to be passed to a plane: ``PlaneCommand/install(allocation:flow:socket:)``.
    ///
    /// - Parameters:
    ///   - address: the address to relay from; port 0 lets the system choose.
    ///   - bufferBytes: the size of the kernel's buffers, if allowed.
    /// - Throws: 10019 if the address is in use, 10007 if the system has no descriptor or memory for it, 10018 for any
    ///   other refusal of the system.
    package static func open(
        _ address: TransportAddress, bufferBytes: Int, usesOffload: Bool = true
    ) throws(ApusError) -> (socket: Int32, address: TransportAddress) {
        let socket = openDatagram(address, sharesPort: false, joins: usesOffload, bufferBytes: bufferBytes)
        guard socket >= 0 else { throw error(address, -socket) }
        return (socket, RawAddress.local(of: socket) ?? address)
    }

    /// A listening socket for a TCP allocation (RFC 6062), to be passed to a plane in the same way.
    ///
    /// - Parameter backlog: peers that wait to be accepted.
    /// - Throws: as ``open(_:bufferBytes:usesOffload:)``.
    package static func listen(
        _ address: TransportAddress, backlog: Int = 64
    ) throws(ApusError) -> (socket: Int32, address: TransportAddress) {
        let raw = RawAddress(address)
        let socket = raw.withSocketAddress { apus_stream_relay_open($0, raw.length, Int32(clamping: backlog)) }
        guard socket >= 0 else { throw error(address, -socket) }
        return (socket, RawAddress.local(of: socket) ?? address)
    }

    /// Starts to connect from the address of a TCP allocation to a peer of the same family; nil if it fails at once.
    static func connect(from local: TransportAddress, to peer: TransportAddress) -> Int32? {
        let (from, to) = (RawAddress(local), RawAddress(peer))
        let socket = from.withSocketAddress { fromAddress in
            to.withSocketAddress { apus_stream_connect(fromAddress, from.length, $0, to.length) }
        }
        return socket < 0 ? nil : socket
    }

    /// Closes a socket that was not passed to a plane.
    package static func close(_ socket: Int32) { apus_close(socket) }

    /// Another descriptor of a plane's socket; nil if the descriptor is no longer that socket.
    static func duplicate(_ socket: Int32, of address: TransportAddress) -> Int32? {
        let copy = apus_duplicate(socket)
        guard copy >= 0 else { return nil }
        // If a plane refused the allocation, it has closed the socket, and the number may have been reused.
        guard RawAddress.local(of: copy) == address else {
            apus_close(copy)
            return nil
        }
        return copy
    }

    /// A bound datagram socket of a listener or an allocation, or -errno.
    package static func openDatagram(
        _ address: TransportAddress, sharesPort: Bool, joins: Bool, bufferBytes: Int
    ) -> Int32 {
        let raw = RawAddress(address)
        return raw.withSocketAddress {
            apus_datagram_open(
                $0, raw.length, sharesPort ? 1 : 0, joins ? 1 : 0, Int32(clamping: bufferBytes),
                Int32(clamping: bufferBytes))
        }
    }

    /// Makes a datagram socket report TTL, DSCP and ECN of received datagrams; see ``ReceiveArena/receipt(_:)``.
    package static func reportMarks(of socket: Int32) { apus_datagram_report_marks(socket) }

    static func error(_ address: TransportAddress, _ number: Int32) -> ApusError {
        switch number {
        case EADDRINUSE: ApusError(.addressInUse, "the address \(address) is in use")
        case EMFILE: ApusError(.overloaded, "the process has reached its limit of open files (RLIMIT_NOFILE)")
        case ENFILE: ApusError(.overloaded, "the system has reached its limit of open files (fs.file-max)")
        case ENOBUFS, ENOMEM: ApusError(.overloaded, "the system has no memory for a socket (errno \(number))")
        default: ApusError(.internalFailure, "the address \(address) cannot be opened (errno \(number))")
        }
    }

    /// True if an errno means that the process or the system has no descriptor or memory left.
    static func isExhaustion(_ number: Int32) -> Bool {
        number == EMFILE || number == ENFILE || number == ENOBUFS || number == ENOMEM
    }
}
