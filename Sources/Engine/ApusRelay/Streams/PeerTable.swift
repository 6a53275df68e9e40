import CApusNet
import Glibc

/// A TCP connection between this node and a peer (RFC 6062): being connected, or joined with a client's data
/// connection.
struct PeerRow {
    var socket: Int32 = -1
    /// The number of uses of this place. It identifies a late readiness event of an earlier socket.
    var generation: UInt32 = 0
    /// Its number from control, and that of its allocation.
    var connection: UInt32 = 0
    var allocation: UInt32 = 0
    /// The index of the client's data connection; -1 until the peer has accepted.
    var stream: Int32 = -1
    /// The index of its user's bucket, or -1 if there is no limit.
    var bucket: Int32 = -1
    /// The client's data that the kernel has not accepted. While there is any, nothing more is read from the client.
    private(set) var output: UnsafeMutableRawPointer?
    private(set) var outputHead = 0
    private(set) var outputCount = 0
    /// The polled events; 0 if it is not polled.
    var events: UInt32 = 0
    /// True if its user has no tokens: nothing is read in either direction until the next tick.
    var isPaced = false
    /// Whether the peer and the client have ended their directions, and whether the other side was notified.
    var isEnded = false
    var isClientEnded = false
    var isEndReported = false
    var isClientEndReported = false
    /// True if close_notify was written to a TLS client.
    var isCloseWritten = false
    /// True if a write to the peer has failed: nothing more is written.
    var takesNothing = false
    var lastHeard: UInt64 = 0
    var traffic = RelayTraffic()
    var reported = RelayTraffic()

    /// True if one direction has ended.
    var isHalfEnded: Bool { isEnded || isClientEnded || takesNothing }

    /// Keeps bytes for the peer: at most the rest of one read.
    mutating func append(_ bytes: UnsafeRawPointer, _ count: Int) {
        let grown = UnsafeMutableRawPointer.allocate(byteCount: outputCount + count, alignment: 64)
        if let output {
            memcpy(grown, output + outputHead, outputCount)
            output.deallocate()
        }
        memcpy(grown + outputCount, bytes, count)
        output = grown
        outputHead = 0
        outputCount += count
    }

    /// Removes bytes that were sent.
    mutating func sent(_ count: Int) {
        outputHead += count
        outputCount -= count
        if outputCount == 0 { free() }
    }

    mutating func free() {
        output?.deallocate()
        output = nil
        (outputHead, outputCount) = (0, 0)
    }
}

/// The connections of one plane to peers.
///
/// Concurrency model: confined to the plane's thread.
struct PeerTable: ~Copyable {
    /// The kernel allocates rows page by page, so an unused one costs nothing.
    let rows: UnsafeMutablePointer<PeerRow>
    private let rowsMax: Int
    private var places = Places()
    private var byNumber: FlatTable
    private(set) var count = 0

    init(rowsMax: Int, seed: UInt64) {
        self.rowsMax = rowsMax
        rows = .allocate(capacity: max(1, rowsMax))
        byNumber = FlatTable(countMax: rowsMax, seed: seed)
    }

    deinit {
        for index in 0..<places.used {
            if rows[index].socket >= 0 { apus_close(rows[index].socket) }
            rows[index].free()
        }
        rows.deallocate()
    }

    /// The rows ever used, as a range to iterate over.
    var slots: Range<Int> { 0..<places.used }

    /// The index of a connection's number.
    func index(connection: UInt32) -> Int? {
        let value = byNumber.value(for: FlatTable.Key(number: connection))
        return value == FlatTable.none ? nil : Int(value)
    }

    /// Takes a place, which owns the socket from now on; nil if all are taken or the number is in use.
    mutating func insert(connection: UInt32, allocation: UInt32, socket: Int32) -> Int? {
        guard count < rowsMax, index(connection: connection) == nil else { return nil }
        let (index, isNew) = places.take()
        if isNew { (rows + index).initialize(to: PeerRow()) }
        guard byNumber.set(UInt32(index), for: FlatTable.Key(number: connection)) else {
            places.give(back: index)
            return nil
        }
        let generation = rows[index].generation &+ 1
        rows[index] = PeerRow()
        rows[index].generation = generation
        rows[index].socket = socket
        rows[index].connection = connection
        rows[index].allocation = allocation
        count += 1
        return index
    }

    /// Frees a place. Returns its socket.
    mutating func release(_ index: Int) -> Int32 {
        let socket = rows[index].socket
        byNumber.remove(FlatTable.Key(number: rows[index].connection))
        rows[index].socket = -1
        rows[index].stream = -1
        rows[index].free()
        places.give(back: index)
        count -= 1
        return socket
    }
}
