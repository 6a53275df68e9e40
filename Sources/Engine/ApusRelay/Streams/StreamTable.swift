import ApusTraversal
import CApusNet
import CApusTLS
import Glibc

/// A client's connection.
struct StreamRow {
    var socket: Int32 = -1
    var generation: UInt32 = 0
    var flow = AllocationRow().flow
    /// The allocation's row, or ``FlatTable/none``.
    var allocation = FlatTable.none
    /// The index of the joined connection to a peer (RFC 6062), or -1.
    var peer: Int32 = -1
    /// True if nothing is read from it, because its peer is slower or it has ended.
    var isPaused = false
    /// The start of an incomplete message.
    var carry: UnsafeMutableRawPointer?
    var carryCount = 0
    private var carryCapacity = 0
    /// Bytes for the client that the kernel has not accepted.
    var output: UnsafeMutableRawPointer?
    var outputHead = 0
    var outputCount = 0
    var outputCapacity = 0
    var isWaitingToWrite = false
    var isInWriteList = false
    var lastHeard: UInt64 = 0
    /// True if the proxy's header has not arrived yet.
    var awaitsProxy = false
    /// libssl's connection if the client uses TLS and has sent its hello, and whether the handshake is complete.
    var tls: OpaquePointer?
    var isSecured = false

    /// True if the kernel has not accepted everything, in plaintext or in libssl.
    var hasWaitingOutput: Bool {
        outputCount > 0 || isWaitingToWrite || (tls.map { apus_tls_waiting($0) > 0 } ?? false)
    }

    /// The initial size of the memory for a message's start, and for output.
    private static let smallBytes = 2_048

    /// Keeps the start of a message, at most `max` bytes. It must not be in the memory kept before.
    mutating func keep(_ bytes: UnsafeRawPointer, _ count: Int, max: Int) {
        if carryCapacity < count {
            carry?.deallocate()
            carryCapacity = count <= Self.smallBytes ? Self.smallBytes : max
            carry = .allocate(byteCount: carryCapacity, alignment: 64)
        }
        guard let carry else { return }
        memcpy(carry, bytes, count)
        carryCount = count
    }

    /// Reserves room for more output, within a limit. Returns false if it does not fit.
    mutating func reserve(_ count: Int, max outputMax: Int) -> Bool {
        if outputCount == 0 { outputHead = 0 }
        if outputHead + outputCount + count <= outputCapacity { return true }
        guard outputCount + count <= outputMax else { return false }
        var capacity = max(outputCapacity, Self.smallBytes)
        while capacity < outputCount + count { capacity *= 2 }
        if capacity == outputCapacity, let output {
            memmove(output, output + outputHead, outputCount)
        } else {
            let grown = UnsafeMutableRawPointer.allocate(byteCount: capacity, alignment: 64)
            if let output {
                memcpy(grown, output + outputHead, outputCount)
                output.deallocate()
            }
            output = grown
            outputCapacity = capacity
        }
        outputHead = 0
        return true
    }

    /// Adds bytes for which ``reserve(_:max:)`` made room.
    @inline(__always)
    mutating func append(_ bytes: UnsafeRawPointer, _ count: Int) {
        guard let output else { return }
        memcpy(output + outputHead + outputCount, bytes, count)
        outputCount += count
    }

    mutating func free() {
        if let tls { apus_tls_free(tls) }
        tls = nil
        carry?.deallocate()
        output?.deallocate()
        carry = nil
        output = nil
        (carryCount, carryCapacity, outputHead, outputCount, outputCapacity) = (0, 0, 0, 0, 0)
    }
}

/// The client connections of one plane.
///
/// Concurrency model: confined to the plane's thread.
struct StreamTable: ~Copyable {
    let rows: UnsafeMutablePointer<StreamRow>
    private let rowsMax: Int
    /// The connections of all planes of the node together.
    private let budget: StreamBudget
    private var places = Places()
    private(set) var count = 0
    private var byNumber: FlatTable
    private var lastNumber: UInt64 = 0
    /// Connections with bytes to write at the end of this round.
    private var writeList: [Int] = []

    init(rowsMax: Int, budget: StreamBudget, seed: UInt64) {
        self.rowsMax = rowsMax
        self.budget = budget
        byNumber = FlatTable(countMax: rowsMax, seed: seed)
        rows = .allocate(capacity: rowsMax)
        writeList.reserveCapacity(rowsMax)
    }

    deinit {
        budget.giveBack(count)
        for slot in 0..<places.used {
            if rows[slot].socket >= 0 { apus_close(rows[slot].socket) }
            rows[slot].free()
        }
        rows.deallocate()
    }

    var slots: Range<Int> { 0..<places.used }
    var isFull: Bool { count >= rowsMax || budget.isFull }

    /// The index of a connection's number, if the connection exists.
    func slot(connection: UInt64) -> Int? {
        // The table's keys are the low half: no two concurrent connections share it.
        let slot = Int(byNumber.value(for: FlatTable.Key(number: UInt32(truncatingIfNeeded: connection))))
        return slot < places.used && rows[slot].flow.connection == connection ? slot : nil
    }

    private func isTaken(_ number: UInt64) -> Bool {
        byNumber.value(for: FlatTable.Key(number: UInt32(truncatingIfNeeded: number))) != FlatTable.none
    }

    /// Takes a place and assigns the connection its number, in its flow; nil if all are taken, here or at the node.
    mutating func insert(socket: Int32) -> Int? {
        var number = lastNumber
        repeat { number &+= 1 } while isTaken(number)
        guard count < rowsMax, budget.take() else { return nil }
        let (slot, isNew) = places.take()
        if isNew { (rows + slot).initialize(to: StreamRow()) }
        let generation = rows[slot].generation &+ 1
        rows[slot] = StreamRow()
        rows[slot].socket = socket
        rows[slot].generation = generation
        rows[slot].flow.connection = number
        lastNumber = number
        guard byNumber.set(UInt32(slot), for: FlatTable.Key(number: UInt32(truncatingIfNeeded: number))) else {
            // The socket remains the caller's.
            rows[slot].socket = -1
            places.give(back: slot)
            budget.giveBack()
            return nil
        }
        count += 1
        return slot
    }

    /// Closes a connection and frees its place.
    ///
    /// The place is freed first: a client that sees its connection end may use it at once, at any plane.
    mutating func remove(_ slot: Int) {
        let socket = rows[slot].socket
        byNumber.remove(FlatTable.Key(number: UInt32(truncatingIfNeeded: rows[slot].flow.connection)))
        rows[slot].socket = -1
        rows[slot].free()
        places.give(back: slot)
        count -= 1
        budget.giveBack()
        apus_close(socket)
    }

    /// Marks a connection as having bytes to write.
    @inline(__always)
    mutating func wantsWrite(_ slot: Int) {
        guard !rows[slot].isInWriteList else { return }
        rows[slot].isInWriteList = true
        writeList.append(slot)
    }

    mutating func nextWrite() -> Int? {
        guard let slot = writeList.popLast() else { return nil }
        rows[slot].isInWriteList = false
        return slot
    }
}
