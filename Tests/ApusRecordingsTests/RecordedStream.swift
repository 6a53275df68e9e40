import ApusCore
import ApusMedia
import ApusRecordings
import NIOCore

/// A made-up stream of a camera: video with groups of pictures, sound, and everything that goes wrong with streams.
struct RecordedStream {
    /// What happens to a stream.
    struct Faults {
        var gaps = false
        var epochs = false
        var configurations = false
        var pauses = false
        var clockSteps = false
    }

    var random: SeededRandom
    var faults = Faults()
    var hasSound = true
    private(set) var frames: [RecordedFrame] = []
    private var position = FramePosition(epoch: 1, sequence: 0)
    private var pts: Int64 = 7_000_000
    private(set) var wall: Int64 = 1_700_000_000_000_000
    private var width: UInt32 = 1280
    private var isStarted = false

    init(seed: UInt64) { random = SeededRandom(seed: seed) }

    var tracks: [SegmentTrack] {
        let video = TrackConfiguration(
            codec: .h264, trackCount: hasSound ? 2 : 1, first: width, second: 720, third: 25_000,
            extraData: [1, 66, 0, 31, 255, 225, 0, 4, 103, 66, 0, 31, 1, 0, 2, 104, 206])
        let sound = TrackConfiguration(
            codec: .g711a, trackCount: 2, first: 8000, second: 1, third: 160, extraData: [])
        return [SegmentTrack(number: 0, configuration: video)]
            + (hasSound ? [SegmentTrack(number: 1, configuration: sound)] : [])
    }

    /// The positions that the node never got.
    private(set) var missing: [RecordedRange] = []

    /// Adds groups of pictures of two seconds.
    mutating func add(groups count: Int) {
        if !isStarted {
            isStarted = true
            configure()
        }
        for _ in 0..<count {
            fault()
            addGroup()
        }
    }

    mutating func end() { add(0, [.endOfEpoch], [], isStart: false) }

    private mutating func configure() {
        for track in tracks {
            var payload = ByteBuffer()
            track.configuration.encode(into: &payload)
            add(track.number, [.configuration], Array(payload.readableBytesView), isStart: false)
        }
    }

    private mutating func fault() {
        let kind = Int.random(in: 0..<12, using: &random)
        switch kind {
        case 0 where faults.gaps:
            let count = UInt64.random(in: 1...40, using: &random)
            missing.append(
                RecordedRange(
                    epoch: position.epoch, first: position.sequence, last: position.sequence + count - 1))
            position.sequence += count
        case 1 where faults.epochs:
            let isEnded = Bool.random(using: &random)
            if isEnded {
                end()
            } else {
                missing.append(
                    RecordedRange(epoch: position.epoch, first: position.sequence, last: MediaHeader.sequenceMax))
            }
            position = FramePosition(epoch: position.epoch + 1, sequence: 0)
            pts = Int64.random(in: 0...1_000_000_000, using: &random)
            configure()
        case 2 where faults.configurations:
            width = width == 1280 ? 640 : 1280
            configure()
        case 3 where faults.pauses:
            let pause = Int64.random(in: 10_500_000...400_000_000, using: &random)
            pts += pause
            wall += pause
        case 4 where faults.clockSteps:
            pts += Int64.random(in: 3_000_000...8_000_000_000, using: &random)
        case 5 where faults.clockSteps && pts > 5_000_000_000:
            pts -= Int64.random(in: 2_000_000...4_000_000_000, using: &random)
        default: break
        }
    }

    private mutating func addGroup() {
        for index in 0..<50 {
            add(0, index == 0 ? [.key] : [], payload(10...300), isStart: index == 0)
            if hasSound {
                for _ in 0..<2 { add(1, [.key], payload(160...160), isStart: false) }
            }
            pts += 40_000
            wall += 40_000
        }
    }

    private mutating func payload(_ range: ClosedRange<Int>) -> [UInt8] {
        let count = Int.random(in: range, using: &random)
        return (0..<count).map { _ in UInt8.random(in: 0...255, using: &random) }
    }

    private mutating func add(_ track: UInt8, _ flags: MediaFlags, _ payload: [UInt8], isStart: Bool) {
        let header = MediaHeader(
            position: position, ptsMicroseconds: pts, captureMilliseconds: 0, flags: flags, track: track)
        let jitter = Int64.random(in: 0...3_000, using: &random)
        frames.append(
            RecordedFrame(
                configurations: isStart ? tracks : [],
                frame: MediaFrame(header: header, payload: ByteBuffer(bytes: payload)),
                receivedMicroseconds: wall + jitter))
        position.sequence += 1
    }

    /// The frames with media.
    var media: [RecordedFrame] {
        frames.filter {
            $0.frame.header.flags.isDisjoint(with: [.configuration]) && $0.frame.payload.readableBytes > 0
        }
    }
}
