import ApusCore
import ApusTraversal
import CApusNet
import Glibc

/// Connections from proxies that the operator names: each begins with a header that tells who the client is
/// (``ProxyHeader``). From there on the connection is that client's, for bounds and answers alike.
extension PacketPlane {
    /// Whether a connection from this address begins with a header.
    func isProxy(_ remote: TransportAddress) -> Bool {
        configuration.proxies.contains { $0.contains(host: remote) }
    }

    /// Reads the header, and not a byte more.
    ///
    /// - Returns: whether all of it was there; the connection goes on, or has been closed, where it was not.
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

    /// The connection is this client's: it counts for the client's source, and no more for the proxy's.
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
