import ApusCluster
import ApusCore
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf

/// A value that nodes send to each other, with its encoding.
///
/// This file is compiled twice: by the tests, and by Version1/record with the sources of the commit whose bytes are
/// frozen. It therefore uses only what both have.
struct WireSample: Sendable {
    /// Unique. It names the line in the file of frozen bytes.
    var name: String
    var encode: @Sendable () throws -> [UInt8]
    /// True if the bytes decode to exactly this value.
    var decodes: @Sendable ([UInt8]) throws -> Bool

    static let all: [WireSample] = {
        let groups: [[WireSample]] = [
            handshake, frames, heartbeats, [map, replica, replicaAnswers, entityHeader], messages,
        ]
        return groups.flatMap { $0 }
    }()

    static let a = NodeID(name: NodeName(unchecked: "node-1"), incarnation: 3)
    static let b = NodeID(name: NodeName(unchecked: "node-2"), incarnation: 5)
    static let cluster = ClusterID(unchecked: "frozen")

    // MARK: Links

    /// The frames of a handshake between two nodes of version 1.
    private static var handshake: [WireSample] {
        [
            frame("hello, control", hello(version: 1, versionMin: 1, lane: .control, node: a), .hello),
            frame("hello, media", hello(version: 1, versionMin: 1, lane: .media, node: a), .hello),
            frame("welcome", hello(version: 1, versionMin: 1, lane: .control, node: b), .welcome),
        ]
    }

    static func hello(version: UInt32, versionMin: UInt32, lane: ClusterNodeHello.Lane, node: NodeID) -> ByteBuffer {
        let message = ClusterNodeHello.with {
            ($0.cluster, $0.node, $0.incarnation) = (cluster.rawValue, node.name.rawValue, node.incarnation)
            ($0.version, $0.versionMin, $0.lane) = (version, versionMin, lane)
        }
        return ByteBuffer(bytes: (try? message.serializedBytes() as [UInt8]) ?? [])
    }

    private static func frame(_ name: String, _ payload: ByteBuffer, _ kind: FrameKind) -> WireSample {
        frame(name, LinkFrame(kind: kind, payload: payload))
    }

    private static func frame(_ name: String, _ frame: LinkFrame) -> WireSample {
        WireSample(
            name: "frame: \(name)",
            encode: {
                var buffer = ByteBuffer()
                frame.encode(into: &buffer)
                return Array(buffer.readableBytesView)
            },
            decodes: { bytes in
                var decoder = LinkFrameDecoder(lengthMax: 1 << 20)
                decoder.append(ByteBuffer(bytes: bytes))
                return try decoder.next() == frame && decoder.bufferedByteCount == 0
            })
    }

    private static var frames: [WireSample] {
        let payload = ByteBuffer(bytes: [1, 2, 3, 250])
        let failure = ClusterFailure.payload(of: ApusError(.moved), epoch: 7, owner: b.name)
        return [
            frame("goodbye", ClusterFailure.payload(of: ApusError(.wrongCluster)), .goodbye),
            frame("request", LinkFrame(kind: .request, method: 0x0101, correlation: 9, payload: payload)),
            frame(
                "timed request",
                LinkFrame(
                    kind: .request, flags: .timed, method: 2, correlation: 0xffff_ffff,
                    payload: ByteBuffer(bytes: [0, 0, 3, 232, 1]))),
            frame("response", LinkFrame(kind: .response, correlation: 9, payload: payload)),
            frame("failure", LinkFrame(kind: .response, flags: .failure, correlation: 9, payload: failure)),
            frame("tell", LinkFrame(kind: .tell, method: 3, payload: payload)),
            frame("cancel", LinkFrame(kind: .cancel, correlation: 9)),
            frame("media", LinkFrame(kind: .media, correlation: 12, payload: payload)),
            frame("ping", LinkFrame(kind: .ping)), frame("pong", LinkFrame(kind: .pong)),
        ]
    }

    // MARK: Heartbeats

    private static var heartbeats: [WireSample] {
        let messages: [(String, HeartbeatMessage)] = [
            ("heartbeat", .heartbeat), ("probe", .probe(nonce: 77, origin: nil)),
            ("probe for another", .probe(nonce: 78, origin: b)), ("answer", .answer(nonce: 77, origin: nil)),
            ("answer for another", .answer(nonce: 78, origin: b)),
            ("indirect request", .indirectRequest(nonce: 79, target: b)),
            ("indirect answer", .indirectAnswer(nonce: 79, target: b)), ("unheard", .unheard(nonce: 79, target: b)),
        ]
        let vitals = HeartbeatVitals(
            wallMilliseconds: 1_767_225_600_123, latenessMilliseconds: 17,
            process: .init(host: 0x0102_0304_0506_0708, number: 4711, thread: 4713, started: 99_999))
        return messages.flatMap { name, message in
            [
                heartbeat("heartbeat 1: \(name)", message, nil), heartbeat("heartbeat 2: \(name)", message, vitals),
            ]
        }
    }

    private static func heartbeat(_ name: String, _ message: HeartbeatMessage, _ vitals: HeartbeatVitals?) -> WireSample
    {
        let datagram = HeartbeatDatagram(
            clusterHash: StableHash.hash(cluster.rawValue), sequence: 1_000_001, sender: a, message: message,
            vitals: vitals)
        return WireSample(
            name: name,
            encode: {
                var buffer = ByteBuffer()
                datagram.encode(into: &buffer)
                return Array(buffer.readableBytesView)
            },
            decodes: { bytes in
                var buffer = ByteBuffer(bytes: bytes)
                return try HeartbeatDatagram(decoding: &buffer) == datagram
            })
    }

    // MARK: The map and replication

    /// A map of four members in all states, whose shards have epochs, and namings after a death.
    static let frozenMap: ClusterMap = {
        var map = ClusterMap(cluster: cluster)
        map.revision = 42
        for (index, state) in Member.State.allCases.enumerated() {
            let host = "10.0.0.\(index + 1)"
            map.members.append(
                Member(
                    id: NodeID(name: NodeName(unchecked: "node-\(index + 1)"), incarnation: UInt64(index * 7 + 1)),
                    state: state,
                    addresses: NodeAddresses(
                        transport: HostPort(host: host, port: 7400), clients: HostPort(host: host, port: 7443),
                        http: HostPort(host: host, port: 8080)), weight: UInt32(100 + index)))
        }
        for index in map.shards.indices {
            map.shards[index] = ShardAssignment(
                owner: MemberSlot(rawValue: UInt16(index % 2)),
                standby: index % 5 == 0 ? .none : MemberSlot(rawValue: UInt16((index + 1) % 2)),
                epoch: UInt32(index % 9 + 1), standbyNamedIn: index % 5 == 1 ? 41 : 0,
                ownerNamedIn: index % 7 == 0 ? 40 : 0)
        }
        return map
    }()

    private static let map = WireSample(
        name: "cluster map", encode: { try frozenMap.encoded() },
        decodes: { try ClusterMap(decoding: $0, revision: 42, cluster: cluster) == frozenMap })

    private static var replica: WireSample {
        let term = ReplicaTerm(epoch: 4, stream: 2)
        var batch = ReplicaBatch(shard: ShardID(17), term: term, sequence: 5, position: 91)
        (batch.completes, batch.isBinding, batch.keepsEarlier) = (true, true, false)
        batch.records = [
            ReplicaRecord(ReplicaKey(kind: .replicatedProbe, key: "door"), ByteBuffer(bytes: [9, 8, 7])),
            ReplicaRecord(ReplicaKey(kind: .device, key: "gone"), nil),
        ]
        let message = ReplicaMessage(
            targetIncarnation: 5, number: 12, revision: 42,
            ends: [ReplicaEnd(shard: ShardID(4095), term: ReplicaTerm(epoch: 3, stream: 1))], batches: [batch])
        return WireSample(
            name: "replica message", encode: { Array(message.encoded().readableBytesView) },
            decodes: { try ReplicaMessage(decoding: ByteBuffer(bytes: $0)) == message })
    }

    private static var replicaAnswers: WireSample {
        let term = ReplicaTerm(epoch: 4, stream: 2)
        let verdicts: [ReplicaAnswer.Verdict] = [
            .next(6), .restart, .older(ReplicaTerm(epoch: 5, stream: 1)), .overloaded,
        ]
        let answers = ReplicaAnswers(
            number: 12,
            answers: verdicts.enumerated().map {
                ReplicaAnswer(shard: ShardID(UInt16($0.offset)), term: term, sequence: 5, verdict: $0.element)
            })
        return WireSample(
            name: "replica answers", encode: { Array(answers.encoded().readableBytesView) },
            decodes: { try ReplicaAnswers(decoding: ByteBuffer(bytes: $0)) == answers })
    }

    private static var entityHeader: WireSample {
        let header = EntityHeader(kind: .device, shard: ShardID(4095), epoch: 8, key: "front-door")
        return WireSample(
            name: "entity header",
            encode: {
                var buffer = ByteBuffer()
                header.encode(into: &buffer)
                return Array(buffer.readableBytesView)
            },
            decodes: { bytes in
                var buffer = ByteBuffer(bytes: bytes)
                return EntityHeader(from: &buffer) == header && buffer.readableBytes == 0
            })
    }
}
