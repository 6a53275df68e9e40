import ApusCluster
import ApusCore
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf
import Testing

/// The bytes of wire version 1, as its last commit encodes them (Version1/README.md).
@Suite("Wire version N−1: frozen bytes (D3)")
struct FrozenWireTests {
    private static let lines: [String: [UInt8]] = {
        let file = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent(
            "Version1/wire.txt")
        let text = (try? String(contentsOf: file, encoding: .utf8)) ?? ""
        var lines: [String: [UInt8]] = [:]
        for line in text.split(separator: "\n") {
            let parts = line.split(separator: "\t")
            guard parts.count == 2 || line.hasSuffix("\t") else { continue }
            let hex = parts.count == 2 ? Array(parts[1].utf8) : []
            lines[String(parts[0])] = stride(from: 0, to: hex.count - 1, by: 2).compactMap {
                UInt8(String(decoding: hex[$0...$0 + 1], as: UTF8.self), radix: 16)
            }
        }
        return lines
    }()

    @Test("Every sample is frozen, and nothing else is")
    func complete() {
        #expect(Set(Self.lines.keys) == Set(WireSample.all.map(\.name)))
        #expect(WireSample.all.count == Set(WireSample.all.map(\.name)).count)
    }

    @Test("What a node of version 1 sends is decoded to the value that it sent", arguments: WireSample.all.map(\.name))
    func decodes(name: String) throws {
        let sample = try #require(WireSample.all.first { $0.name == name })
        let bytes = try #require(Self.lines[name])
        #expect(try sample.decodes(bytes))
    }

    @Test(
        "What is sent to a node of version 1 has the bytes that it sends itself", arguments: WireSample.all.map(\.name))
    func encodes(name: String) throws {
        let sample = try #require(WireSample.all.first { $0.name == name })
        let bytes = try #require(Self.lines[name])
        #expect(try sample.encode() == bytes)
    }

    @Test("A flipped bit in a frozen value is seen: the comparison can fail", arguments: WireSample.all.map(\.name))
    func canFail(name: String) throws {
        let sample = try #require(WireSample.all.first { $0.name == name })
        var bytes = try #require(Self.lines[name])
        guard !bytes.isEmpty else { return }
        bytes[0] ^= 1
        let isSame = (try? sample.decodes(bytes)) ?? false
        #expect(!isSame)
    }

    // MARK: Handshakes

    private func frame(_ name: String) throws -> LinkFrame {
        var decoder = LinkFrameDecoder(lengthMax: 1 << 20)
        decoder.append(ByteBuffer(bytes: try #require(Self.lines["frame: \(name)"])))
        return try #require(try decoder.next())
    }

    @Test("A hello of version 1 is answered, and the link speaks version 1")
    func olderDialer() throws {
        var acceptor = HandshakeStateMachine(role: .acceptor, cluster: WireSample.cluster, local: WireSample.b)
        _ = acceptor.secured(certificateName: WireSample.a.name)
        let actions = acceptor.received(try frame("hello, control"))
        #expect(actions.contains(.established(LinkPeer(id: WireSample.a, lane: .control, version: 1))))
        // The welcome is readable for version 1: its range includes 1.
        guard case .send(let welcome) = actions.first else { throw ApusError(.malformed) }
        let said = try ClusterNodeHello(bounded: welcome.payload)
        #expect(welcome.kind == .welcome && said.versionMin == 1 && said.version == WireVersion.current)
    }

    @Test("A welcome of version 1 is accepted by the side that connected")
    func olderAcceptor() throws {
        var dialer = HandshakeStateMachine(
            role: .dialer(expecting: WireSample.b, lane: .control), cluster: WireSample.cluster, local: WireSample.a)
        _ = dialer.secured(certificateName: WireSample.b.name)
        #expect(
            dialer.received(try frame("welcome"))
                == [.established(LinkPeer(id: WireSample.b, lane: .control, version: 1))])
    }

    /// A node of version 1 takes the lower of the two newest versions, and refuses the link unless both sides speak it.
    /// Its code is that of this machine with its range.
    @Test("A node of version 1 accepts this release's hello and welcome", arguments: [true, false])
    func newerPeer(isDialer: Bool) throws {
        let old: ClosedRange<UInt32> = 1...1
        let new = WireVersion.oldest...WireVersion.current
        var dialer = HandshakeStateMachine(
            role: .dialer(expecting: WireSample.b, lane: .media), cluster: WireSample.cluster, local: WireSample.a,
            versions: isDialer ? old : new)
        var acceptor = HandshakeStateMachine(
            role: .acceptor, cluster: WireSample.cluster, local: WireSample.b, versions: isDialer ? new : old)
        _ = acceptor.secured(certificateName: WireSample.a.name)
        guard case .send(let hello) = dialer.secured(certificateName: WireSample.b.name).first else {
            throw ApusError(.malformed)
        }
        let accepted = acceptor.received(hello)
        guard case .send(let welcome) = accepted.first else { throw ApusError(.malformed) }
        #expect(accepted.last == .established(LinkPeer(id: WireSample.a, lane: .media, version: 1)))
        #expect(
            dialer.received(welcome) == [.established(LinkPeer(id: WireSample.b, lane: .media, version: 1))])
    }

    @Test("Nodes without a common version refuse the link with 10003, and the other side is told the number")
    func noCommonVersion() throws {
        // A later release that has dropped version 2 and 1.
        let hello = WireSample.hello(version: 4, versionMin: 3, lane: .control, node: WireSample.a)
        var acceptor = HandshakeStateMachine(role: .acceptor, cluster: WireSample.cluster, local: WireSample.b)
        _ = acceptor.secured(certificateName: WireSample.a.name)
        let actions = acceptor.received(LinkFrame(kind: .hello, payload: hello))
        guard case .send(let goodbye) = actions.first, case .reject(let reason, let error) = actions.last else {
            throw ApusError(.malformed)
        }
        #expect(reason == .version && error.code == .versionUnsupported && error.code.number == 10_003)
        #expect(goodbye.kind == .goodbye && ClusterFailure.read(goodbye.payload).error.code == .versionUnsupported)

        var dialer = HandshakeStateMachine(
            role: .dialer(expecting: WireSample.b, lane: .control), cluster: WireSample.cluster, local: WireSample.a,
            versions: 3...4)
        _ = dialer.secured(certificateName: WireSample.b.name)
        guard case .reject(.refused, let told) = dialer.received(goodbye).last else { throw ApusError(.malformed) }
        #expect(told.code == .versionUnsupported)
    }

    // MARK: The map

    @Test("A map with a history and a cordoned node is readable for version 1, which sees the rest of it")
    func newerMap() throws {
        var map = WireSample.frozenMap
        map.members[0].isCordoned = true
        let change = MapChange(
            kind: .cordoned, maker: WireSample.a, nodes: [map.members[0].id], revision: 42, milliseconds: 1)
        map.history.record(change, before: map.shards, after: map.shards)
        let value = try ClusterMapValue(bounded: try map.encoded())
        // What version 1 keeps: the fields that it knows.
        var known = value
        (known.changes, known.ownerChanges, known.standbyChanges) = ([], Data(), Data())
        for index in known.members.indices { known.members[index].cordoned = false }
        #expect(try known.serializedBytes() as [UInt8] == Self.lines["cluster map"])
        // A node of this version goes on from the map that version 1 wrote.
        let read = try ClusterMap(decoding: try known.serializedBytes(), revision: 42, cluster: WireSample.cluster)
        #expect(read.isSuccessor(of: map) && map.isSuccessor(of: read))
        #expect(read.history.changes.isEmpty && !read.members[0].isCordoned)
    }
}
