import ApusConfiguration
import ApusCore
import ApusRelay
package import ApusTraversal

/// The relay's limits, most of them for clients that are not authenticated (D13).
/// Every property is a key of `cluster-configs/one-node.yaml`, which documents its unit and when to change it.
package struct RelayBounds: Sendable {
    package var unauthenticatedTimeout = Duration.seconds(15)
    package var unauthenticatedPerSourceMax = 1_024
    package var unauthenticatedCarryMax = 2_048
    package var unauthenticatedOutputMax = 4_096
    package var handshakesPerSourceMax = 128
    /// The rate of an allocation's STUN messages that have priority over those of clients without an allocation.
    package var controlShare = TurnServerConfiguration.Rate(burst: 256, perSecond: 128)
    /// The maximum number of messages queued between a thread and the control thread, and the maximum size of one, in
    /// bytes.
    package var controlQueueMax = 4_096
    package var controlMessageMax = 2_048
    package var portChallenges = TurnServerConfiguration.Rate(burst: 16, perSecond: 8)
    package var addressChallenges = TurnServerConfiguration.Rate(burst: 2_048, perSecond: 128)
    package var challengesPerProof = 2
    package var challengeCreditMax = 8_192
    package var portProofFailures = TurnServerConfiguration.Rate(burst: 64, perSecond: 16)
    package var addressProofFailures = TurnServerConfiguration.Rate(burst: 1_024, perSecond: 512)
    /// How often a client's credentials are checked even if its address has exhausted its rate.
    package var proofReserveInterval = Duration.seconds(10)
    package var allocationProofFailures = TurnServerConfiguration.Rate(burst: 64, perSecond: 16)
    package var bindings = TurnServerConfiguration.Rate(burst: 1_024, perSecond: 512)
    package var sourcesMax = 8_192
    /// The maximum number of client connections of one thread; 0 means an even share of the node's.
    package var streamsPerThreadMax = 0
    package var reservationsMax = 1_024
    package var reservationsPerUserMax = 16
    /// True if DSCP, ECN and TTL are copied to relayed packets.
    package var carriesMarks = true
    package var logLinesPerSecond = RelayServer.linesPerSecondMax

    package init() {}

    /// - Throws: 10022 with file, line and key.
    init(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = RelayBounds()
        unauthenticatedTimeout = try reader.duration(
            "relay.unauthenticated.timeout", default: d.unauthenticatedTimeout)
        unauthenticatedPerSourceMax = try reader.int(
            "relay.unauthenticated.per_source_max", default: d.unauthenticatedPerSourceMax, in: 1...1_000_000)
        unauthenticatedCarryMax = try reader.int(
            "relay.unauthenticated.carry_max", default: d.unauthenticatedCarryMax, in: 256...65_536)
        unauthenticatedOutputMax = try reader.int(
            "relay.unauthenticated.output_max", default: d.unauthenticatedOutputMax, in: 1_024...262_144)
        handshakesPerSourceMax = try reader.int(
            "relay.tls.handshakes_per_source_max", default: d.handshakesPerSourceMax, in: 1...65_536)
        controlQueueMax = try reader.int("relay.control.queue_max", default: d.controlQueueMax, in: 64...1_000_000)
        controlMessageMax = try reader.int(
            "relay.control.message_max", default: d.controlMessageMax, in: 548...65_536)
        controlShare = try Self.rate(&reader, "relay.control.allocation", d.controlShare)
        portChallenges = try Self.rate(&reader, "relay.challenges.client", d.portChallenges)
        addressChallenges = try Self.rate(&reader, "relay.challenges.address", d.addressChallenges)
        challengesPerProof = try reader.int(
            "relay.challenges.per_proof", default: d.challengesPerProof, in: 0...64)
        challengeCreditMax = try reader.int(
            "relay.challenges.credit_max", default: d.challengeCreditMax, in: 0...1_000_000)
        portProofFailures = try Self.rate(&reader, "relay.wrong_credentials.client", d.portProofFailures)
        addressProofFailures = try Self.rate(&reader, "relay.wrong_credentials.address", d.addressProofFailures)
        proofReserveInterval = try reader.duration(
            "relay.wrong_credentials.client_reserve_interval", default: d.proofReserveInterval)
        guard proofReserveInterval >= .milliseconds(100), proofReserveInterval <= .seconds(3_600) else {
            throw reader.invalid("relay.wrong_credentials.client_reserve_interval", "100ms to 1h are expected")
        }
        allocationProofFailures = try Self.rate(
            &reader, "relay.wrong_credentials.allocation", d.allocationProofFailures)
        bindings = try Self.rate(&reader, "relay.bindings.address", d.bindings)
        streamsPerThreadMax = try reader.int(
            "relay.streams_per_thread_max", default: d.streamsPerThreadMax, in: 0...1_000_000)
        reservationsMax = try reader.int("relay.reservations_max", default: d.reservationsMax, in: 0...65_536)
        reservationsPerUserMax = try reader.int(
            "relay.reservations_per_user_max", default: d.reservationsPerUserMax, in: 0...65_536)
        carriesMarks = try reader.flag("relay.carry_marks", default: d.carriesMarks)
        logLinesPerSecond = try reader.int(
            "relay.log_lines_per_second", default: d.logLinesPerSecond, in: 1...100_000)
        sourcesMax = try reader.int("relay.sources_max", default: d.sourcesMax, in: 256...1_048_576)
    }

    /// Reads the keys `…_burst` and `…_per_second`.
    private static func rate(
        _ reader: inout ConfigurationReader, _ key: String, _ fallback: TurnServerConfiguration.Rate
    ) throws(ApusError) -> TurnServerConfiguration.Rate {
        let burst = try reader.int(key + "_burst", default: fallback.burst, in: 1...1_000_000)
        let perSecond = try reader.int(
            key + "_per_second", default: Int(fallback.perSecond), in: 1...1_000_000)
        return TurnServerConfiguration.Rate(burst: burst, perSecond: Double(perSecond))
    }

    /// Applies the limits of the state machine.
    func apply(to turn: inout TurnServerConfiguration) {
        turn.portChallenges = portChallenges
        (turn.challengeBurst, turn.challengesPerSecond) = (addressChallenges.burst, addressChallenges.perSecond)
        (turn.challengesPerProof, turn.challengeCreditMax) = (challengesPerProof, challengeCreditMax)
        turn.portProofFailures = portProofFailures
        turn.addressProofFailures = addressProofFailures
        turn.proofReserve = TurnServerConfiguration.Rate(
            burst: 1, perSecond: 1_000 / proofReserveInterval.milliseconds)
        turn.allocationProofFailures = allocationProofFailures
        (turn.bindingBurst, turn.bindingsPerSecond) = (bindings.burst, bindings.perSecond)
        turn.sourceRows = sourcesMax
        turn.reservationsMax = reservationsMax
        turn.reservationsPerUserMax = reservationsPerUserMax
    }

    /// The maximum number of connections of one thread, as a part of the node's.
    func streamsPerThread(of nodeMax: Int, threads: Int) -> Int {
        streamsPerThreadMax == 0 ? max(1, nodeMax / threads) : min(streamsPerThreadMax, nodeMax)
    }

    /// Applies the limits of a plane.
    func apply(to plane: inout PlaneConfiguration) {
        plane.unauthenticatedTimeout = unauthenticatedTimeout
        plane.unauthenticatedPerSourceMax = unauthenticatedPerSourceMax
        plane.unauthenticatedCarryMax = unauthenticatedCarryMax
        plane.unauthenticatedOutputMax = unauthenticatedOutputMax
        plane.handshakesPerSourceMax = handshakesPerSourceMax
        (plane.controlShareBurst, plane.controlSharePerSecond) = (Double(controlShare.burst), controlShare.perSecond)
        plane.ringCapacity = controlQueueMax
        plane.carriesMarks = carriesMarks
        plane.controlMessageMax = controlMessageMax
    }
}
