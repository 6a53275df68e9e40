import ApusTraversal
import CApusNet
import Glibc

/// The number of errors that were reported to each allocation's client in this second.
///
/// Concurrency model: confined to the plane's thread.
struct ErrorBounds: ~Copyable {
    private struct Row {
        var second: UInt64 = 0
        var count = 0
    }

    /// As many as rows of allocations. The kernel allocates them page by page.
    private let rows: UnsafeMutablePointer<Row>
    private var used = 0
    private let perSecondMax: Int

    init(rowsMax: Int, perSecondMax: Int) {
        rows = .allocate(capacity: max(1, rowsMax))
        self.perSecondMax = perSecondMax
    }

    deinit { rows.deallocate() }

    /// Returns true, and counts it, if one more may be reported.
    mutating func take(_ slot: Int, at nanoseconds: UInt64) -> Bool {
        while used <= slot {
            (rows + used).initialize(to: Row())
            used += 1
        }
        let second = nanoseconds / 1_000_000_000
        if rows[slot].second != second { rows[slot] = Row(second: second) }
        guard rows[slot].count < perSecondMax else { return false }
        rows[slot].count += 1
        return true
    }
}

/// ICMP errors of datagrams to peers (RFC 8656 §11.5). They are read only when a socket reports an error.
extension PacketPlane {
    /// Errors of one socket that are read before other sockets are served.
    private static var errorRounds: Int { 64 }

    /// Makes the kernel queue ICMP errors of a relay socket's datagrams, if clients are to be notified.
    func reportErrors(of socket: Int32) {
        if configuration.peerErrorsPerSecondMax > 0 { _ = apus_datagram_report_errors(socket) }
    }

    /// Reads the errors that wait at one of an allocation's sockets, and passes those of permitted peers to control.
    ///
    /// - Parameter unfragmented: the peer of an unfragmentable datagram that the kernel just refused. Its path MTU is
    ///   reported to the client like an ICMP error.
    /// - Returns: the number of errors.
    @inline(never)
    @discardableResult
    mutating func readErrors(_ slot: Int, _ socket: Int32, unfragmented: TransportAddress? = nil) -> Int {
        var error = apus_datagram_error()
        var count = 0
        var isLocalReported = false
        while count < Self.errorRounds, apus_datagram_take_error(socket, &error) == 1 {
            count += 1
            if error.origin == UInt8(APUS_ORIGIN_LOCAL) {
                if let unfragmented, !isLocalReported { hand(error, of: unfragmented, slot) }
                isLocalReported = true
            } else {
                // SAFETY: the address has the 28 bytes that are read.
                let peer = withUnsafeBytes(of: &error.peer) { $0.baseAddress.flatMap(RawAddress.read) }
                if let peer { hand(error, of: peer, slot) }
            }
        }
        return count
    }

    /// A receive failed. Waiting datagrams stay; the loop reads them at once.
    @inline(never)
    mutating func receivingFailed(_ slot: Int, _ socket: Int32, _ error: Int32) {
        // If the queue has an error, it was that of an earlier datagram.
        guard readErrors(slot, socket) == 0, !SendBatch.mayTellOfEarlier(error) else { return }
        guard errors.take(slot, at: now) else { return }
        _ = link.event(.relayError(allocation: allocations.rows[slot].id, error: error))
    }

    private mutating func hand(_ error: apus_datagram_error, of peer: TransportAddress, _ slot: Int) {
        guard let icmp = Self.icmp(error, peer.family),
            allocations.isPermitted(peer: FlatTable.Key(peer, scope: UInt32(truncatingIfNeeded: slot)))
        else {
            counters.peerErrorsIgnored &+= 1
            return
        }
        guard errors.take(slot, at: now),
            link.event(.peerError(allocation: allocations.rows[slot].id, peer: peer, icmp))
        else {
            counters.peerErrorsLimited &+= 1
            return
        }
        counters.peerErrors &+= 1
    }

    /// The types that clients are notified of: destination unreachable and time exceeded, and of IPv6 packet too big
    /// (RFC 8656 §11.5), with its MTU (§18.13).
    private static func icmp(_ error: apus_datagram_error, _ family: TransportAddress.Family) -> StunICMP? {
        switch (Int(error.origin), error.type, error.code) {
        case (Int(APUS_ORIGIN_LOCAL), _, _):
            guard error.number == EMSGSIZE else { return nil }
            return family == .v4
                ? StunICMP(type: 3, code: 4, errorData: error.info) : StunICMP(type: 2, code: 0, errorData: error.info)
        case (Int(APUS_ORIGIN_ICMP), 3, 4), (Int(APUS_ORIGIN_ICMP6), 2, _):
            return StunICMP(type: error.type, code: error.code, errorData: error.info)
        case (Int(APUS_ORIGIN_ICMP), 3, _), (Int(APUS_ORIGIN_ICMP), 11, _), (Int(APUS_ORIGIN_ICMP6), 1, _),
            (Int(APUS_ORIGIN_ICMP6), 3, _):
            return StunICMP(type: error.type, code: error.code, errorData: 0)
        default: return nil
        }
    }
}
