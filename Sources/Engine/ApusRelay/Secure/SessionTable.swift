import ApusTraversal
import CApusTLS

/// A DTLS client, with libssl's session for its address.
struct SessionRow {
    /// Nil if the place is free.
    var dtls: OpaquePointer?
    /// Its listener.
    var listener: Int32 = -1
    var flow = AllocationRow().flow
    /// The allocation's row, or ``FlatTable/none``.
    var allocation = FlatTable.none
    /// True if the handshake is complete.
    var isSecured = false
    var lastHeard: UInt64 = 0

    mutating func free() {
        apus_dtls_free(dtls)
        dtls = nil
    }
}

/// The DTLS sessions of one plane, by their clients' addresses and by their numbers.
///
/// Concurrency model: confined to the plane's thread.
struct SessionTable: ~Copyable {
    let rows: UnsafeMutablePointer<SessionRow>
    private let rowsMax: Int
    private var places = Places()
    private(set) var count = 0
    private var byAddress: FlatTable
    private var byNumber: FlatTable
    private var lastNumber: UInt64 = 0
    /// Sessions with an incomplete handshake.
    var handshakes: AdmissionStateMachine
    /// Unauthenticated sessions.
    var unauthenticated: AdmissionStateMachine

    init(configuration: PlaneConfiguration, seed: UInt64) {
        rowsMax = configuration.sessionsMax
        handshakes = AdmissionStateMachine(perSourceMax: configuration.handshakesPerSourceMax)
        unauthenticated = AdmissionStateMachine(perSourceMax: configuration.unauthenticatedPerSourceMax)
        byAddress = FlatTable(countMax: rowsMax, seed: seed)
        byNumber = FlatTable(countMax: rowsMax, seed: seed &+ 1)
        rows = .allocate(capacity: rowsMax)
    }

    deinit {
        for slot in 0..<places.used { rows[slot].free() }
        rows.deallocate()
    }

    var slots: Range<Int> { 0..<places.used }
    var isFull: Bool { count >= rowsMax }

    /// The index of a client's address; the key's scope is the listener.
    @inline(__always)
    func slot(client key: FlatTable.Key) -> Int? {
        let slot = byAddress.value(for: key)
        return slot == FlatTable.none ? nil : Int(slot)
    }

    /// The index of a session's number, if the session exists.
    func slot(connection: UInt64) -> Int? {
        // The table's keys are the low half: no two concurrent sessions share it.
        let slot = Int(byNumber.value(for: Self.numberKey(connection)))
        return slot < places.used && rows[slot].flow.connection == connection ? slot : nil
    }

    private static func numberKey(_ number: UInt64) -> FlatTable.Key {
        FlatTable.Key(number: UInt32(truncatingIfNeeded: number))
    }

    /// Takes a place and assigns the session its number, in its flow; nil if all are taken. The address must have no
    /// session.
    mutating func insert(_ dtls: OpaquePointer, listener: Int, flow: RelayFlow, now: UInt64) -> Int? {
        guard !isFull else { return nil }
        var number = lastNumber
        repeat { number &+= 1 } while byNumber.value(for: Self.numberKey(number)) != FlatTable.none
        let (slot, isNew) = places.take()
        if isNew { (rows + slot).initialize(to: SessionRow()) }
        let key = FlatTable.Key(flow.remote, scope: UInt32(listener))
        guard byNumber.set(UInt32(slot), for: Self.numberKey(number)), byAddress.set(UInt32(slot), for: key) else {
            byNumber.remove(Self.numberKey(number))
            places.give(back: slot)
            return nil
        }
        lastNumber = number
        rows[slot] = SessionRow()
        rows[slot].dtls = dtls
        rows[slot].listener = Int32(listener)
        rows[slot].flow = flow
        rows[slot].flow.connection = number
        rows[slot].lastHeard = now
        handshakes.enter(slot, from: flow.remote, at: now)
        unauthenticated.enter(slot, from: flow.remote, at: now)
        count += 1
        return slot
    }

    /// Frees a session and its place.
    mutating func remove(_ slot: Int) {
        rows[slot].free()
        handshakes.leave(slot)
        unauthenticated.leave(slot)
        byAddress.remove(FlatTable.Key(rows[slot].flow.remote, scope: UInt32(rows[slot].listener)))
        byNumber.remove(Self.numberKey(rows[slot].flow.connection))
        places.give(back: slot)
        count -= 1
    }
}
