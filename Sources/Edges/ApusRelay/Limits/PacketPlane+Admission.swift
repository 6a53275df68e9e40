import ApusCore
import ApusTraversal

/// Connections and DTLS sessions that have neither an allocation nor a peer's connection: nobody has shown a credential
/// on them, so that they are bounded by time, by source and by what they make the plane keep (D13).
extension PacketPlane {
    /// Whether an authenticated request gave the connection an allocation or a peer's connection (RFC 6062).
    func isAuthenticated(stream slot: Int) -> Bool {
        streams.rows[slot].allocation != FlatTable.none || streams.rows[slot].peer >= 0
    }

    /// Bytes of a message that has not come whole which are kept of a connection.
    func carryMax(_ slot: Int) -> Int {
        isAuthenticated(stream: slot) ? Self.carryMax : configuration.unauthenticatedCarryMax
    }

    /// Bytes that wait for a client that does not read.
    func outputMax(_ slot: Int) -> Int {
        isAuthenticated(stream: slot)
            ? configuration.streamOutputMax : min(configuration.streamOutputMax, configuration.unauthenticatedOutputMax)
    }

    /// Ends the connection that has to make room for another one from this address.
    mutating func makeRoom(forStreamFrom remote: TransportAddress) {
        guard let slot = unauthenticated.displaced(by: remote, isFull: streams.isFull) else { return }
        counters.unauthenticatedDisplaced &+= 1
        closeStream(slot)
    }

    /// Ends the session that has to make room for another one from this address.
    mutating func makeRoom(forSessionFrom remote: TransportAddress) {
        guard let slot = sessions.unauthenticated.displaced(by: remote, isFull: sessions.isFull) else { return }
        counters.unauthenticatedDisplaced &+= 1
        closeSession(slot)
    }

    /// A connection whose allocation has ended has the same time for another one. It displaces nobody.
    mutating func returnToAdmission(stream slot: Int) {
        unauthenticated.enter(slot, from: streams.rows[slot].flow.remote, at: now)
    }

    mutating func returnToAdmission(session slot: Int) {
        sessions.unauthenticated.enter(slot, from: sessions.rows[slot].flow.remote, at: now)
    }

    /// Closes what had its time to authenticate.
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
