import ApusCore
import ApusEtcd
import Testing

@Suite("Frames of etcd's messages")
struct EtcdFrameTests {
    private let messages: [[UInt8]] = [[1, 2, 3], [], Array(repeating: 7, count: 300), [9]]

    private func decode(_ parts: [[UInt8]]) throws -> [[UInt8]] {
        var decoder = EtcdFrameDecoder(messageByteCountMax: 300)
        var found: [[UInt8]] = []
        for part in parts {
            decoder.append(part)
            while let message = try decoder.next() { found.append(message) }
        }
        return found
    }

    @Test("A message follows a zero and its length in four bytes")
    func encoding() {
        #expect(EtcdFrame.encode([5, 6]) == [0, 0, 0, 0, 2, 5, 6])
        #expect(EtcdFrame.encode(Array(repeating: 1, count: 0x01_0203)).prefix(5) == [0, 0, 1, 2, 3])
    }

    @Test("Messages are found in parts of any size", arguments: [1, 2, 5, 7, 64, 1_000])
    func parts(size: Int) throws {
        let bytes = messages.flatMap(EtcdFrame.encode)
        let parts = stride(from: 0, to: bytes.count, by: size).map { Array(bytes[$0..<min($0 + size, bytes.count)]) }
        #expect(try decode(parts) == messages)
    }

    @Test("A message that is cut off is not found")
    func truncated() throws {
        let bytes = messages.flatMap(EtcdFrame.encode)
        for count in 0..<bytes.count {
            let found = try decode([Array(bytes.prefix(count))])
            #expect(found.count < messages.count && found == Array(messages.prefix(found.count)))
        }
    }

    @Test("A compressed message and one that is too long are refused")
    func refused() {
        #expect(throws: ApusError(.malformed)) { try decode([[1, 0, 0, 0, 0]]) }
        #expect(throws: ApusError(.frameTooLarge)) { try decode([[0, 0, 0, 1, 45]]) }
        #expect(throws: ApusError(.frameTooLarge)) { try decode([[0, 255, 255, 255, 255]]) }
    }
}

@Suite("Failures of etcd")
struct EtcdFailureTests {
    @Test("The status and the message say what failed; a node that starts waits for etcd only after some of them")
    func kinds() {
        let expected: [(Int, String, EtcdFailure.Kind)] = [
            (4, "context deadline exceeded", .timeout), (14, "etcdserver: no leader", .noLeader),
            (14, "etcdserver: request timed out", .failed), (2, "etcdserver: leader changed", .failed),
            // While a majority is stopped.
            (2, "context deadline exceeded", .timeout), (14, "context deadline exceeded", .timeout),
            (14, "connection refused", .unreachable), (2, "something else", .unreachable),
            (3, "etcdserver: revision of auth store is old", .token), (9, "precondition", .refused),
        ]
        for (code, message, kind) in expected {
            #expect(EtcdFailure.kind(ofStatus: code, message) == kind, "\(code) \(message)")
        }
    }
}
