import ApusCore
import ApusTraversal

/// Unauthenticated connections and DTLS sessions: those with neither an allocation nor a peer's connection. They are
/// limited by time, by source and by memory (D13).
extension PacketPlane {
    /// True if an authenticated request gave the connection an allocation or a peer's connection (RFC 6062).
    func isAuthenticated(stream slot: Int) -> Bool {
        streams.rows[slot].allocation != FlatTable.none || streams.rows[slot].peer >= 0
    }

    /// The most bytes of an incomplete message that are kept for a connection.
    func carryMax(_ slot: Int) -> Int {
        isAuthenticated(stream: slot) ? Self.carryMax : configuration.unauthenticatedCarryMax
    }

    /// The most bytes that wait for a client that does not read.
    func outputMax(_ slot: Int) -> Int {
        isAuthenticated(stream: slot)
            ? configuration.streamOutputMax : min(configuration.streamOutputMax, configuration.unauthenticatedOutputMax)
    }

    /// Closes the connection that must make room for another one from this address.
    mutating func makeRoom(forStreamFrom remote: TransportAddress) {
        guard let slot = unauthenticated.displaced(by: remote, isFull: streams.isFull) else { return }
        counters.unauthenticatedDisplaced &+= 1
        closeStream(slot)
    }

    /// Closes the session that must make room for another one from this address.
    mutating func makeRoom(forSessionFrom remote: TransportAddress) {
        guard let slot = sessions.unauthenticated.displaced(by: remote, isFull: sessions.isFull) else { return }
        counters.unauthenticatedDisplaced &+= 1
        closeSession(slot)
    }

    /// A connection whose allocation ended has the same time to create another one. It displaces no other.
    mutating func returnToAdmission(stream slot: Int) {
        unauthenticated.enter(slot, from: streams.rows[slot].flow.remote, at: now)
    }

    mutating func returnToAdmission(session slot: Int) {
        sessions.unauthenticated.enter(slot, from: sessions.rows[slot].flow.remote, at: now)
    }

    /// Closes connections and sessions that did not authenticate in time.
    mutating func endUnauthenticated(_ now: UInt64) {
        let limit = UInt64(configuration.unauthenticatedTimeout.nanoseconds)
        while let slot = unauthenticated.late(at: now, limit: limit) {
            counters.unauthenticatedLate &+= 1
            closeStream(slot)
        }
        while let slot = sessions.unauthenticated.late(at: now, limit: limit) {
            counters.unauthenticatedLate &+= 1
            closeSession(slot)
        }
    }
}
