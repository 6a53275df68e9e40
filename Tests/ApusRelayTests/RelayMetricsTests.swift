import ApusCore
import ApusHTTP
import ApusRelay
import Testing

@Suite("The relay's metrics")
struct RelayMetricsTests {
    private func traffic(_ packets: UInt64) -> RelayTraffic {
        var traffic = RelayTraffic()
        (traffic.upPackets, traffic.upBytes) = (packets, packets * 100)
        (traffic.downPackets, traffic.downBytes) = (packets + 1, packets * 10)
        return traffic
    }

    @Test("Packets are counted once, also of an allocation that moves to another plane")
    func traffic() {
        let backend = PrometheusMetrics()
        var metrics = RelayMetrics(factory: backend)
        metrics.carried(1, traffic(5), plane: 0, isFinal: false)
        metrics.carried(1, traffic(7), plane: 0, isFinal: false)
        // The second plane begins at 0, before the first has told its end.
        metrics.carried(1, traffic(2), plane: 1, isFinal: false)
        metrics.carried(1, traffic(9), plane: 0, isFinal: true)
        metrics.carried(1, traffic(4), plane: 1, isFinal: true)
        let text = backend.text()
        #expect(text.contains("apus_relay_packets_total{direction=\"up\"} 13\n"))
        #expect(text.contains("apus_relay_packets_total{direction=\"down\"} 15\n"))
        #expect(text.contains("apus_relay_bytes_total{direction=\"up\"} 1300\n"))
        var stream = RelayTraffic()
        stream.upBytes = 50
        metrics.streamed(stream)
        #expect(backend.text().contains("apus_relay_bytes_total{direction=\"up\"} 1350\n"))
    }

    @Test("Every metric is in the catalogue, with its kind")
    func catalogue() {
        let backend = PrometheusMetrics()
        var metrics = RelayMetrics(factory: backend)
        metrics.counted(0, PlaneCounters())
        metrics.refused("ports")
        let types = backend.text().matches(of: /# TYPE (\w+) (\w+)/)
        #expect(types.count > 20)
        for type in types {
            #expect(MetricCatalogue.byName[String(type.1)]?.kind.rawValue == String(type.2), "\(type.1)")
        }
    }

    @Test("Drops of all planes are added by reason, and limited answers by kind")
    func drops() {
        let backend = PrometheusMetrics()
        var metrics = RelayMetrics(factory: backend)
        var counters = PlaneCounters()
        counters.notPermitted = 3
        metrics.counted(0, counters)
        metrics.counted(1, counters)
        counters.notPermitted = 4
        (counters.controlDropped, counters.shortCircuited) = (2, 12)
        (counters.unauthenticatedDropped, counters.controlTooLong) = (13, 14)
        (counters.answersDropped, counters.newsDropped) = (15, 16)
        (counters.unauthenticated, counters.unauthenticatedLate, counters.unauthenticatedDisplaced) = (17, 18, 19)
        (counters.handshakes, counters.handshakesLate, counters.sessions) = (5, 3, 2)
        (counters.peerErrors, counters.peerErrorsLimited, counters.peerErrorsIgnored) = (6, 7, 8)
        (counters.peers, counters.peersJoined, counters.peersFailed, counters.peersRefused) = (1, 9, 10, 11)
        metrics.counted(0, counters)
        metrics.stands(allocations: 6, mirrors: 2, limited: RelayLimitCounts(challenges: 10))
        metrics.stands(
            allocations: 5, mirrors: 3,
            limited: RelayLimitCounts(challenges: 12, bindings: 1, proofs: 3, allocations: 4, peers: 5))
        metrics.began()
        let text = backend.text()
        #expect(text.contains("apus_relay_dropped_total{reason=\"not_permitted\"} 7\n"))
        #expect(text.contains("apus_relay_dropped_total{reason=\"ring\"} 2\n"))
        #expect(text.contains("apus_relay_dropped_total{reason=\"unauthenticated\"} 13\n"))
        #expect(text.contains("apus_relay_dropped_total{reason=\"too_long\"} 14\n"))
        #expect(text.contains("apus_relay_dropped_total{reason=\"answer\"} 15\n"))
        #expect(text.contains("apus_relay_dropped_total{reason=\"event\"} 16\n"))
        #expect(text.contains("apus_relay_unauthenticated 17\n"))
        #expect(text.contains("apus_relay_unauthenticated_ended_total{result=\"late\"} 18\n"))
        #expect(text.contains("apus_relay_unauthenticated_ended_total{result=\"displaced\"} 19\n"))
        #expect(text.contains("apus_relay_limited_total{answer=\"proof\"} 3\n"))
        #expect(text.contains("apus_relay_handshakes_total{result=\"done\"} 5\n"))
        #expect(text.contains("apus_relay_handshakes_total{result=\"late\"} 3\n"))
        #expect(text.contains("apus_relay_dtls_sessions 2\n"))
        #expect(text.contains("apus_relay_peer_errors_total{result=\"told\"} 6\n"))
        #expect(text.contains("apus_relay_peer_errors_total{result=\"limited\"} 7\n"))
        #expect(text.contains("apus_relay_peer_errors_total{result=\"ignored\"} 8\n"))
        #expect(text.contains("apus_relay_peer_connections 1\n"))
        #expect(text.contains("apus_relay_peer_connections_total{result=\"joined\"} 9\n"))
        #expect(text.contains("apus_relay_peer_connections_total{result=\"failed\"} 10\n"))
        #expect(text.contains("apus_relay_peer_connections_total{result=\"refused\"} 11\n"))
        #expect(text.contains("apus_relay_limited_total{answer=\"challenge\"} 12\n"))
        #expect(text.contains("apus_relay_limited_total{answer=\"binding\"} 1\n"))
        #expect(text.contains("apus_relay_short_circuited_total 12\n"))
        #expect(text.contains("apus_relay_allocations 5\n"))
        #expect(text.contains("apus_relay_mirrors 3\n"))
        #expect(text.contains("apus_relay_over_quota_total{quota=\"allocations\"} 4\n"))
        #expect(text.contains("apus_relay_over_quota_total{quota=\"new_peers\"} 5\n"))
        #expect(text.contains("apus_relay_allocations_total 1\n"))
    }
}
