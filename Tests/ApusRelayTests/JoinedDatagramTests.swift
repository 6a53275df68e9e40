import ApusRelay
import ApusTraversal
import Glibc
import Testing

@Suite("Datagrams that come joined (D8)")
struct JoinedDatagramTests {
    /// Datagrams of a size, each told from the others by its number.
    private func payloads(_ count: Int, size: Int) -> [[UInt8]] {
        (0..<count).map { number in
            (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 7 &+ number) }
        }
    }

    @Test(
        "They arrive one by one, in order and whole, on their own channels, both ways",
        arguments: [1, 2, 3, 40, 63], [true, false])
    func joined(count: Int, usesOffload: Bool) throws {
        let harness = try PlaneHarness { $0.usesOffload = usesOffload }
        let client = LoopbackSocket()
        let peers = [LoopbackSocket(), LoopbackSocket()]
        let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peers[0].address)
        harness.command(.permit(allocation: allocation.id, peer: peers[1].address, ports: 1...65_535))
        harness.command(.bindChannel(allocation: allocation.id, number: 0x4001, peer: peers[1].address))
        harness.settle()
        let size = 100
        guard client.cut(into: Int32(4 + size)), peers[0].cut(into: Int32(size)) else { return }
        let payloads = payloads(count, size: size)
        // Runs of one channel, changes between two, a number that nobody bound, and a shorter one at the end.
        let numbers = (0..<count).map { $0 % 20 < 12 ? 0x4000 : $0 % 20 < 17 ? 0x4001 : 0x4005 as UInt16 }
        var whole = zip(numbers, payloads).flatMap { PlaneHarness.channelData($0, $1) }
        whole += PlaneHarness.channelData(0x4000, [1, 2, 3])
        client.send(whole, to: harness.endpoint)
        for (number, payload) in zip(numbers, payloads) where number != 0x4005 {
            #expect(peers[Int(number & 1)].receive(milliseconds: 1_000) == payload)
        }
        #expect(peers[0].receive(milliseconds: 1_000) == [1, 2, 3])
        peers[0].send(payloads.flatMap { $0 } + [9], to: allocation.relayed)
        for payload in payloads + [[9]] {
            #expect(client.receive(milliseconds: 1_000) == PlaneHarness.channelData(0x4000, payload))
        }
        let traffic = try #require(harness.remove(allocation.id))
        #expect(traffic.upPackets == UInt64(numbers.count { $0 != 0x4005 } + 1))
        #expect(traffic.upBytes == UInt64(numbers.count { $0 != 0x4005 } * size + 3))
        #expect(traffic.downPackets == UInt64(count + 1))
        #expect(traffic.downBytes == UInt64(count * size + 1))
        #expect(traffic.dropped == UInt64(numbers.count { $0 == 0x4005 }))
    }

    @Test("More of the same are taken as long as the run takes them")
    func addMore() {
        let (sender, receiver) = (LoopbackSocket(), LoopbackSocket())
        let memory = UnsafeMutableRawPointer.allocate(byteCount: 65_536, alignment: 64)
        let address = UnsafeMutablePointer<RawAddress>.allocate(capacity: 1)
        address.initialize(to: RawAddress(receiver.address))
        defer {
            memory.deallocate()
            address.deallocate()
        }
        for number in 0..<100 {
            (memory + number * 104).initializeMemory(as: UInt8.self, repeating: UInt8(number), count: 104)
        }
        var batch = SendBatch(segmentMax: 1_452, canSegment: true)
        var mark = SendBatch.Mark()
        var dropped: UInt64 = 0
        withUnsafeMutablePointer(to: &dropped) { dropped in
            #expect(batch.addMore(5, stride: 104, mark: mark) == 0, "nothing was added before")
            batch.add(
                memory, 100, head: nil, mark: &mark, socket: sender.descriptor, address: address, dropped: dropped)
            #expect(batch.addMore(9, stride: 104, mark: mark) == 9)
            #expect(batch.addMore(5, stride: 108, mark: mark) == 0, "they stand elsewhere")
            #expect(batch.addMore(90, stride: 104, mark: mark) == 54, "a run has 64")
            batch.add(
                memory + 64 * 104, 50, head: nil, mark: &mark, socket: sender.descriptor, address: address,
                dropped: dropped)
            #expect(batch.pendingRuns == 2)
            batch.flush()
            #expect(batch.addMore(1, stride: 104, mark: mark) == 0, "the batch is another")
        }
        for number in 0..<64 {
            #expect(receiver.receive(milliseconds: 1_000) == [UInt8](repeating: UInt8(number), count: 100))
        }
        #expect(receiver.receive(milliseconds: 1_000) == [UInt8](repeating: 64, count: 50))
        #expect(dropped == 0)
    }
}
