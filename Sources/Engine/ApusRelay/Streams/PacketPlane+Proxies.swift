import ApusCore
import ApusTraversal
import CApusNet
import Glibc

/// Connections from the operator's proxies. Each begins with a header that names the client (``ProxyHeader``). After it
/// the connection counts as that client's, for limits and answers.
extension PacketPlane {
    /// True if a connection from this address begins with a header.
    func isProxy(_ remote: TransportAddress) -> Bool {
        configuration.proxies.contains { $0.contains(host: remote) }
    }

    /// Reads the header, and not a byte more.
    ///
    /// - Returns: true if it was complete. Otherwise the connection waits, or was closed.
    mutating func readProxyHeader(_ slot: Int) -> Bool {
        let row = streams.rows + slot
        while true {
            let kept = row.pointee.carryCount
            if kept > 0, let carry = row.pointee.carry { memcpy(streamBuffer, carry, kept) }
            switch ProxyHeader(UnsafeRawBufferPointer(start: streamBuffer, count: kept)) {
            case .incomplete(let wanted):
                let count = apus_read(row.pointee.socket, streamBuffer + kept, wanted - kept)
                guard count > 0 else {
                    if count == 0 || (-count != Int(EAGAIN) && -count != Int(EINTR)) { closeStream(slot) }
                    return false
                }
                row.pointee.keep(streamBuffer, kept + count, max: ProxyHeader.byteCountMax)
            case .complete(_, let client):
                row.pointee.carryCount = 0
                row.pointee.awaitsProxy = false
                if let client { belongs(slot, to: client) }
                if row.pointee.flow.transport == .tls { beginHandshake(slot) }
                return true
            case .invalid:
                counters.malformed &+= 1
                closeStream(slot)
                return false
            }
        }
    }

    /// Assigns the connection to this client: it counts for the client's source, and no longer for the proxy's.
    private mutating func belongs(_ slot: Int, to client: TransportAddress) {
        unauthenticated.leave(slot)
        streams.rows[slot].flow.remote = client
        if let displaced = unauthenticated.displaced(by: client, isFull: false) {
            counters.unauthenticatedDisplaced &+= 1
            closeStream(displaced)
        }
        unauthenticated.enter(slot, from: client, at: now)
    }
}
