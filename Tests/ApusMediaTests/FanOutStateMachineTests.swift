import ApusMedia
import NIOCore
import Testing

@Suite("Receivers as cursors into one ring (D7)")
struct FanOutStateMachineTests {
    private func fanOut(
        _ frames: [RelayFrame], limits: FrameRingLimits = FrameRingLimits(), batch: Int = 1 << 20, lag: Int = 1 << 20
    ) -> FanOutStateMachine {
        var machine = FanOutStateMachine(
            ring: FrameRing(limits: limits), batchByteCountMax: batch, lagByteCountMax: lag)
        for frame in frames { machine.append(frame) }
        return machine
    }

    /// Everything that is ready, and how many frames were said to be lost.
    private func drain(
        _ machine: inout FanOutStateMachine, _ id: FanOutStateMachine.ReceiverID
    ) throws -> (frames: [MediaFrame], skipped: UInt64) {
        var frames: [MediaFrame] = []
        var skipped: UInt64 = 0
        while let batch = machine.nextBatch(for: id) {
            skipped += batch.skippedCount
            var bytes = batch.bytes
            while bytes.readableBytes > 0 {
                bytes.moveReaderIndex(forwardBy: RelayFrame.linkHeaderByteCount)
                let length: UInt32 = try #require(bytes.getInteger(at: bytes.readerIndex + 28))
                let slice = bytes.readSlice(length: MediaHeader.byteCount + Int(length))
                frames.append(try MediaFrame(decoding: try #require(slice)))
            }
            if !batch.hasMore { break }
        }
        return (frames, skipped)
    }

    private func numbers(_ frames: [MediaFrame]) -> [UInt64] {
        frames.filter { !$0.header.flags.contains(.repeated) }.map(\.header.position.sequence)
    }

    @Test("A viewer starts with the configurations and the last key frame, then gets each frame once")
    func live() throws {
        var machine = fanOut(stream(0..<10, keys: [2, 7]))
        let viewer = machine.add(.viewer, after: nil)
        let first = try drain(&machine, viewer)
        #expect(first.frames.prefix(2).allSatisfy { $0.header.flags == [.configuration, .repeated] })
        #expect(numbers(first.frames) == [7, 8, 9])
        #expect(machine.nextBatch(for: viewer) == nil)
        machine.append(relayFrame(10))
        #expect(numbers(try drain(&machine, viewer).frames) == [10])
    }

    @Test("A receiver in this process gets the frames of which a connection gets the bytes", arguments: [1 << 20, 300])
    func frames(batch: Int) throws {
        var machine = fanOut(stream(0..<10, keys: [2, 7]), batch: batch)
        _ = machine.add(.viewer, after: at(3))
        _ = machine.add(.viewer, after: at(3))
        for _ in 0..<2 {
            while let bytes = machine.nextBatch(at: 0) {
                let next = machine.nextFrames(at: 1)
                let frames = try #require(next)
                var joined = ByteBuffer()
                for frame in frames.frames { joined.writeImmutableBuffer(frame.encoded) }
                #expect(joined == bytes.bytes && frames.byteCount == bytes.bytes.readableBytes)
                #expect(frames.hasMore == bytes.hasMore && frames.skippedCount == bytes.skippedCount)
            }
            #expect(machine.nextFrames(at: 1) == nil)
            machine.append(relayFrame(10))
        }
    }

    @Test("A frame in a relay is read without its decoder")
    func parts() throws {
        for frame in stream(0..<10, keys: [2, 7]) {
            let whole = try MediaFrame(decoding: frame.content)
            #expect(whole.payload == frame.payload && whole.header.position == frame.position)
            var encoded = ByteBuffer(repeating: 0, count: RelayFrame.linkHeaderByteCount)
            whole.encode(into: &encoded)
            let again = try RelayFrame(encoding: whole) { _, head in
                head.writeRepeatingByte(0, count: RelayFrame.linkHeaderByteCount)
            }
            #expect(again.encoded == encoded && again.position == frame.position && again.flags == frame.flags)
        }
    }

    @Test("A viewer that comes before the first key frame waits for it")
    func waitsForKey() throws {
        var machine = fanOut(stream(0..<2, keys: []))
        let viewer = machine.add(.viewer, after: nil)
        #expect(machine.nextBatch(for: viewer) == nil)
        machine.append(relayFrame(2, flags: .key))
        #expect(numbers(try drain(&machine, viewer).frames) == [0, 1, 2])
    }

    @Test("A viewer that resumes gets everything after its last frame, after the configurations (D7)")
    func resumes() throws {
        var machine = fanOut(stream(0..<10, keys: [2, 7]))
        let result = try drain(&machine, machine.add(.viewer, after: at(4)))
        #expect(numbers(result.frames) == [5, 6, 7, 8, 9])
        #expect(result.frames.prefix(2).allSatisfy { $0.header.flags.contains(.repeated) })
        #expect(result.skipped == 0)
    }

    @Test("A viewer that is ahead of this relay gets nothing twice")
    func ahead() throws {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let viewer = machine.add(.viewer, after: at(12))
        for sequence in UInt64(10)..<15 { machine.append(relayFrame(sequence)) }
        let result = try drain(&machine, viewer)
        #expect(numbers(result.frames) == [13, 14])
        #expect(result.skipped == 0)
    }

    @Test("Frames that are gone are announced with their number, and the live picture follows")
    func lost() throws {
        var machine = fanOut(stream(0..<20, keys: [2, 17]), limits: FrameRingLimits(frameCountMax: 6))
        let result = try drain(&machine, machine.add(.viewer, after: at(9)))
        #expect(numbers(result.frames) == [17, 18, 19])
        #expect(result.skipped == 7)
    }

    @Test(
        "After a gap a viewer goes on at the next key frame of video, with configurations; who misses nothing goes on")
    func gapEndsAtKey() throws {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let viewer = machine.add(.viewer, after: nil)
        _ = try drain(&machine, viewer)
        let ahead = machine.add(.viewer, after: at(14))
        let copy = machine.add(.standby, after: at(9))
        let edge = machine.add(.edge, after: at(9))
        machine.append(relayFrame(15, track: 1, flags: .key))
        machine.append(relayFrame(16))
        #expect(try drain(&machine, viewer).frames.isEmpty)
        for id in [ahead, copy, edge] { #expect(numbers(try drain(&machine, id).frames) == [15, 16]) }
        machine.append(relayFrame(17, flags: .key))
        let result = try drain(&machine, viewer)
        #expect(result.frames.prefix(2).allSatisfy { $0.header.flags == [.configuration, .repeated] })
        #expect(numbers(result.frames) == [17])
        #expect(result.skipped == 7)
    }

    @Test("Without video every frame is a place to go on after a gap")
    func gapOfAudio() throws {
        var machine = fanOut([relayFrame(0, track: 1, flags: .configuration, codec: .opus)])
        machine.append(relayFrame(1, track: 1, flags: .key))
        let viewer = machine.add(.viewer, after: nil)
        _ = try drain(&machine, viewer)
        machine.append(relayFrame(5, track: 1, flags: .key))
        #expect(numbers(try drain(&machine, viewer).frames) == [5])
    }

    @Test("A run of a camera that begins in its middle is a gap; one that begins with its first frame is none")
    func newEpoch() throws {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let viewer = machine.add(.viewer, after: at(9))
        machine.append(relayFrame(30, epoch: 2))
        #expect(try drain(&machine, viewer).frames.isEmpty)
        machine.append(relayFrame(31, epoch: 2, flags: .key))
        #expect(numbers(try drain(&machine, viewer).frames) == [31])
        for frame in stream(0..<4, epoch: 3, keys: [2]) { machine.append(frame) }
        #expect(numbers(try drain(&machine, viewer).frames) == [0, 1, 2, 3])
    }

    @Test("A live join waits for a key frame that is not too old, a receiver that goes on where it was does not")
    func liveFloor() throws {
        var machine = fanOut(stream(0..<10, keys: [2, 7]))
        machine.setLiveFloor(at(10))
        let live = machine.add(.viewer, after: nil)
        let resumed = machine.add(.viewer, after: at(8))
        #expect(try drain(&machine, live).frames.isEmpty)
        #expect(numbers(try drain(&machine, resumed).frames) == [9])
        machine.append(relayFrame(10))
        #expect(try drain(&machine, live).frames.isEmpty)
        machine.append(relayFrame(11, flags: .key))
        #expect(numbers(try drain(&machine, live).frames) == [11])
        let next = machine.add(.viewer, after: nil)
        machine.setLiveFloor(at(12))
        #expect(try drain(&machine, next).frames.isEmpty)
        machine.setLiveFloor(nil)
        #expect(numbers(try drain(&machine, next).frames) == [11])
    }

    @Test("An edge that wants the live picture gets some frames more, for those who lost another node just now")
    func edgeLead() throws {
        var machine = fanOut(stream(0..<100, keys: [2, 95]))
        #expect(numbers(try drain(&machine, machine.add(.edge, after: nil)).frames) == Array(68..<100))
        var short = fanOut(stream(0..<10, keys: [2, 7]))
        #expect(numbers(try drain(&short, short.add(.edge, after: nil)).frames) == Array(0..<10))
        var long = fanOut(stream(0..<100, keys: [2, 20]))
        #expect(numbers(try drain(&long, long.add(.edge, after: nil)).frames) == Array(20..<100))
    }

    @Test("An edge that asks for more than is held gets all that is; its clients are told what they lost")
    func edge() throws {
        var machine = fanOut(stream(0..<20, keys: [2, 17]), limits: FrameRingLimits(frameCountMax: 6))
        let result = try drain(&machine, machine.add(.edge, after: at(9)))
        #expect(numbers(result.frames) == [14, 15, 16, 17, 18, 19])
        #expect(result.skipped == 0)
        #expect(machine.viewerCount == 1)
    }

    @Test("A gap in what comes from upstream is announced to each receiver that misses something, and to no other")
    func upstreamGap() throws {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let served = machine.add(.viewer, after: nil)
        _ = try drain(&machine, served)
        let behind = machine.add(.viewer, after: at(4))
        let ahead = machine.add(.viewer, after: at(14))
        machine.append(relayFrame(15, flags: .key))
        for (viewer, skipped) in [(served, UInt64(5)), (behind, 10), (ahead, 0)] {
            let result = try drain(&machine, viewer)
            #expect(numbers(result.frames) == [15])
            #expect(result.skipped == skipped)
        }
    }

    @Test("A viewer that lags too far goes on at the last key frame; a standby never leaves out what is held")
    func lag() throws {
        var machine = fanOut(stream(0..<5, keys: [2]), lag: 500)
        let viewer = machine.add(.viewer, after: at(4))
        let standby = machine.add(.standby, after: at(4))
        for sequence in UInt64(5)..<40 { machine.append(relayFrame(sequence, flags: sequence == 30 ? .key : [])) }
        let slow = try drain(&machine, viewer)
        #expect(numbers(slow.frames) == Array(30..<40))
        #expect(slow.skipped == 25)
        #expect(numbers(try drain(&machine, standby).frames) == Array(5..<40))
    }

    @Test("A recorder lags without a skip, and goes on with what is left where its next frame is gone")
    func recorder() throws {
        var machine = fanOut(stream(0..<5, keys: [2]), limits: FrameRingLimits(frameCountMax: 40), lag: 500)
        let recorder = machine.add(.recorder, after: at(4))
        #expect(machine.viewerCount == 1)
        for sequence in UInt64(5)..<30 { machine.append(relayFrame(sequence, flags: sequence == 20 ? .key : [])) }
        let lagging = try drain(&machine, recorder)
        #expect(numbers(lagging.frames) == Array(5..<30) && lagging.skipped == 0)
        for sequence in UInt64(30)..<90 { machine.append(relayFrame(sequence)) }
        let late = try drain(&machine, recorder)
        #expect(numbers(late.frames) == Array(50..<90) && late.skipped == 20)
        // One that comes too late has lost the same, without a key frame to begin with.
        let other = try drain(&machine, machine.add(.recorder, after: at(40)))
        #expect(numbers(other.frames) == Array(50..<90) && other.skipped == 9)
    }

    @Test("A recorder goes on behind a gap from upstream, where a viewer waits for a key frame")
    func recorderBehindGap() throws {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let recorder = machine.add(.recorder, after: at(9))
        let viewer = machine.add(.viewer, after: at(9))
        machine.append(relayFrame(13))
        let result = try drain(&machine, recorder)
        #expect(numbers(result.frames) == [13] && result.skipped == 3)
        #expect(machine.nextBatch(for: viewer) == nil)
    }

    @Test("A copy starts with all that is held, also where its last frame is gone")
    func copyStart() throws {
        var machine = fanOut(stream(0..<20, keys: [2, 17]), limits: FrameRingLimits(frameCountMax: 6))
        #expect(numbers(try drain(&machine, machine.add(.standby, after: nil)).frames) == Array(14..<20))
        #expect(numbers(try drain(&machine, machine.add(.standby, after: at(3))).frames) == Array(14..<20))
        let slow = machine.add(.standby, after: at(19))
        for sequence in UInt64(20)..<40 { machine.append(relayFrame(sequence)) }
        #expect(numbers(try drain(&machine, slow).frames) == Array(34..<40))
    }

    @Test("One write never carries more than the bound and one frame; the rest follows")
    func batches() throws {
        var machine = fanOut(stream(0..<10, keys: [2]), batch: 150)
        let viewer = machine.add(.viewer, after: nil)
        let next = machine.nextBatch(for: viewer)
        let batch = try #require(next)
        #expect(batch.hasMore)
        #expect(batch.bytes.readableBytes < 300)
    }

    @Test("Receivers at the same place share one buffer")
    func sharing() throws {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let ids = (0..<3).map { _ in machine.add(.viewer, after: nil) }
        for id in ids { _ = try drain(&machine, id) }
        machine.append(relayFrame(10))
        machine.append(relayFrame(11))
        let addresses = try ids.map { id in
            let batch = machine.nextBatch(for: id)
            return try #require(batch).bytes.withUnsafeReadableBytes { UInt(bitPattern: $0.baseAddress) }
        }
        #expect(Set(addresses).count == 1)
    }

    @Test("A receiver that left gets nothing, and leaving twice is harmless")
    func leaving() {
        var machine = fanOut(stream(0..<10, keys: [2]))
        let viewer = machine.add(.viewer, after: nil)
        #expect(machine.viewerCount == 1)
        let (first, second) = (machine.remove(viewer), machine.remove(viewer))
        #expect(first && !second)
        let batch = machine.nextBatch(for: viewer)
        #expect(batch == nil)
        #expect(machine.receiverCount == 0)
    }
}
