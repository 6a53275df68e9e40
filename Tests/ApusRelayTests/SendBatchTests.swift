import ApusRelay
import ApusTraversal
import Glibc
import Testing

@Suite("Datagrams in runs of equal ones (D8)")
struct SendBatchTests {
    /// What a test sends: sizes to one destination, and what it looks at.
    private struct Outcome {
        var runs: Int
        var unsegmented: UInt64
        var received: [[UInt8]]
        var dropped: UInt64
    }

    private func send(
        _ sizes: [Int], head: UInt32? = nil, canSegment: Bool = true, isRefused: Bool = false, runCountMax: Int = 64
    ) -> Outcome {
        let sender = LoopbackSocket()
        // The kernel cuts nothing for a socket that sends no checksums.
        var one: Int32 = isRefused ? 1 : 0
        setsockopt(sender.descriptor, SOL_SOCKET, SO_NO_CHECK, &one, socklen_t(MemoryLayout<Int32>.size))
        let receiver = LoopbackSocket()
        var batch = SendBatch(segmentMax: 1_452, canSegment: canSegment, runCountMax: runCountMax)
        let memory = UnsafeMutableRawPointer.allocate(byteCount: 262_144, alignment: 64)
        let address = UnsafeMutablePointer<RawAddress>.allocate(capacity: 1)
        address.initialize(to: RawAddress(receiver.address))
        var dropped: UInt64 = 0
        var mark = SendBatch.Mark()
        var runs = 0
        defer {
            memory.deallocate()
            address.deallocate()
        }
        withUnsafeMutablePointer(to: &dropped) { dropped in
            var offset = 0
            for (index, size) in sizes.enumerated() {
                (memory + offset).initializeMemory(as: UInt8.self, repeating: UInt8(index & 0xFF), count: size)
                batch.add(
                    memory + offset, UInt32(size), head: head, mark: &mark, socket: sender.descriptor,
                    address: address, dropped: dropped)
                offset += size
            }
            runs = batch.pendingRuns
            batch.flush()
        }
        let received = sizes.compactMap { _ in receiver.receive(milliseconds: 1_000) }
        return Outcome(runs: runs, unsegmented: batch.unsegmented, received: received, dropped: dropped)
    }

    private func expected(_ sizes: [Int], head: [UInt8] = []) -> [[UInt8]] {
        sizes.enumerated().map { head + [UInt8](repeating: UInt8($0 & 0xFF), count: $1) }
    }

    @Test(
        "A run ends after a shorter datagram, before a longer one, and at 64",
        arguments: [
            ([200, 200, 200], 1), ([200, 200, 100], 1), ([200, 100, 200], 2), ([100, 200], 2), ([200], 1),
            ([100, 50, 50], 2), (Array(repeating: 20, count: 65), 2), ([1_400, 1_400, 10], 1),
            ([1_453, 1_453], 2), ([1_452, 1_452], 1), ([], 0),
        ])
    func runs(sizes: [Int], runs: Int) {
        let outcome = send(sizes)
        #expect(outcome.runs == runs)
        #expect(outcome.received == expected(sizes))
        #expect(outcome.dropped == 0)
    }

    @Test("A datagram without a byte goes out alone and arrives as one")
    func empty() {
        let outcome = send([0, 0, 8])
        #expect(outcome.runs == 3)
        #expect(outcome.received == expected([0, 0, 8]))
    }

    @Test("Each datagram of a run has its head before it")
    func heads() {
        let outcome = send([100, 100, 40], head: UInt32(0x4000_0064).bigEndian)
        #expect(outcome.runs == 1)
        #expect(outcome.received == expected([100, 100, 40], head: [0x40, 0, 0, 100]))
    }

    @Test("A datagram by itself has its head before it, whether it is copied or not", arguments: [40, 3_000])
    func head(size: Int) {
        let outcome = send([size], head: UInt32(0x4000_0000).bigEndian)
        #expect(outcome.received == expected([size], head: [0x40, 0, 0, 0]))
    }

    @Test("A run has 128 datagrams where it may; a kernel that cuts 64 gets them one by one")
    func longRun() {
        let sizes = [Int](repeating: 20, count: 129)
        let outcome = send(sizes, runCountMax: 128)
        #expect(outcome.runs == 2)
        #expect(outcome.received == expected(sizes))
        #expect(outcome.dropped == 0)
    }

    @Test(
        "A run that the kernel refuses to cut goes out datagram by datagram, each with its head",
        arguments: [false, true])
    func refusedRun(hasHead: Bool) {
        let head: UInt32? = hasHead ? UInt32(0x4000_0064).bigEndian : nil
        let outcome = send([100, 100, 100, 40], head: head, isRefused: true)
        #expect((outcome.runs, outcome.unsegmented, outcome.dropped) == (1, 1, 0))
        #expect(outcome.received == expected([100, 100, 100, 40], head: hasHead ? [0x40, 0, 0, 100] : []))
    }

    @Test("More than is copied together at once arrives whole and in order")
    func many() {
        let sender = LoopbackSocket()
        let receivers = (0..<4).map { _ in LoopbackSocket() }
        var batch = SendBatch(segmentMax: 1_452, canSegment: true)
        let sizes = [Int](repeating: 1_400, count: 39) + [7]
        let memory = UnsafeMutableRawPointer.allocate(byteCount: 65_536, alignment: 64)
        let addresses = UnsafeMutablePointer<RawAddress>.allocate(capacity: receivers.count)
        var dropped: UInt64 = 0
        defer {
            memory.deallocate()
            addresses.deallocate()
        }
        withUnsafeMutablePointer(to: &dropped) { dropped in
            for (index, receiver) in receivers.enumerated() {
                (addresses + index).initialize(to: RawAddress(receiver.address))
                var mark = SendBatch.Mark()
                for (number, size) in sizes.enumerated() {
                    let datagram = memory + number * 1_400
                    datagram.initializeMemory(as: UInt8.self, repeating: UInt8(number), count: size)
                    batch.add(
                        datagram, UInt32(size), head: nil, mark: &mark, socket: sender.descriptor,
                        address: addresses + index, dropped: dropped)
                }
            }
            #expect(batch.pendingRuns == 4)
            batch.flush()
        }
        #expect(dropped == 0)
        for receiver in receivers {
            let received = sizes.map { _ in receiver.receive(milliseconds: 1_000) ?? [] }
            // The bytes themselves would fill pages where they differ.
            #expect(received.map(\.count) == sizes)
            #expect(received.enumerated().allSatisfy { number, bytes in bytes.allSatisfy { $0 == UInt8(number) } })
        }
    }

    @Test("Where the kernel cannot cut, each datagram is a message, and all arrive")
    func unsegmented() {
        let outcome = send([200, 200, 200], canSegment: false)
        #expect(outcome.runs == 3)
        #expect(outcome.received == expected([200, 200, 200]))
    }

    @Test("What the kernel does not take is counted at its destination and does not hold up the rest")
    func refused() {
        let outcome = send([70_000, 100])
        #expect(outcome.dropped == 1)
        #expect(outcome.received == [[UInt8](repeating: 1, count: 100)])
    }
}
