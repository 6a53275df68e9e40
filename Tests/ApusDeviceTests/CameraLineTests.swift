import ApusCore
import ApusDevice
import NIOCore
import Testing

/// A camera's connections, and where its frames are on the time line. It has 25 pictures a second.
private struct Camera {
    /// A real sequence set (High, 320x240, 4:2:0) and picture set of x264.
    private static let sets: [[UInt8]] = [
        [
            0x67, 0x64, 0x00, 0x0d, 0xac, 0xd9, 0x41, 0x41, 0xfb, 0x01, 0x10, 0x00, 0x00, 0x03, 0x00, 0x10, 0x00, 0x00,
            0x03, 0x03, 0x20, 0xf1, 0x42, 0x99, 0x60,
        ],
        [0x68, 0xeb, 0xe3, 0xcb, 0x22, 0xc0],
    ]
    private static let sound = "m=audio 0 RTP/AVP 97\r\na=rtpmap:97 PCMA/8000\r\n"

    private var line = CameraLine()
    private var now = MonotonicTime.zero
    private var video = PacketMaker()
    private var audio = PacketMaker(type: 97, source: 6)
    private var hasSound = false
    /// The decode times of the frames of each track, in microseconds.
    private(set) var times: [[Int64]] = [[], []]

    init() {}

    mutating func connect(trackCount: Int) throws {
        hasSound = trackCount == 2
        let description = SessionDescription(PacketMaker.video + (hasSound ? Self.sound : ""))
        let tracks = try CameraTrack.choose(from: description, name: "cam").tracks
        try #require(tracks.count == trackCount)
        line.begin(tracks: tracks, at: now)
    }

    mutating func wait(_ duration: Duration) { now = now + duration }

    /// Sends pictures, and a packet of sound after each one.
    mutating func send(_ count: Int, startsWithKey: Bool) {
        for index in 0..<count {
            now = now + .milliseconds(40)
            let milliseconds = UInt32(now.nanoseconds / 1_000_000)
            let isKey = startsWithKey && index == 0
            if isKey {
                for set in Self.sets { take(video.packet(milliseconds * 90, set), of: 0) }
            }
            take(video.packet(milliseconds * 90, [isKey ? 0x65 : 0x41, 5], marker: true), of: 0)
            if hasSound { take(audio.packet(milliseconds * 8, [1, 2, 3]), of: 1) }
        }
    }

    private mutating func take(_ packet: ByteBuffer, of track: Int) {
        for case .frame(let frame) in line.take(packet, of: track, at: now) {
            times[Int(frame.track)].append(frame.dts)
        }
    }
}

@Suite("One camera's time line over many connections")
struct CameraLineTests {
    @Test(
        "Times rise, however many tracks the camera has at each connection, and if one ends before its first key frame",
        arguments: [[2, 1, 2], [1, 2, 2], [2, 1, 1], [1, 2, 1], [1, 1, 2]])
    func trackCounts(counts: [Int]) throws {
        var camera = Camera()
        for (index, count) in counts.enumerated() {
            try camera.connect(trackCount: count)
            // Longer than the gap, which would hide a line that starts again.
            camera.send(index == 0 ? 500 : 50, startsWithKey: index != 1)
            camera.wait(.seconds(2))
        }
        let (pictures, sound) = (camera.times[0], camera.times[1])
        #expect(pictures.count == 550)
        #expect(sound.count == (counts[0] == 2 ? 500 : 0) + (counts[2] == 2 ? 50 : 0))
        #expect(zip(pictures, pictures.dropFirst()).allSatisfy(<) && zip(sound, sound.dropFirst()).allSatisfy(<))
    }

    @Test("The wait for the first key frame of a new connection stays on the line", arguments: [1, 2])
    func lateKey(trackCount: Int) throws {
        var camera = Camera()
        try camera.connect(trackCount: trackCount)
        camera.send(100, startsWithKey: true)
        camera.wait(.seconds(2))
        try camera.connect(trackCount: trackCount)
        camera.send(300, startsWithKey: false)
        camera.send(100, startsWithKey: true)
        let pictures = camera.times[0]
        try #require(pictures.count == 200)
        // 2 s without a connection, and 12 s without a key frame.
        let gap = pictures[100] - pictures[99]
        #expect((14_000_000...14_200_000).contains(gap), "\(gap) µs")
        #expect(pictures[101] - pictures[100] == 40_000)
    }

    @Test("A camera without parameter sets in its description is seen from its first key frame on, also after 28 s")
    func lateFirstKey() throws {
        var camera = Camera()
        try camera.connect(trackCount: 1)
        camera.send(700, startsWithKey: false)
        #expect(camera.times[0].isEmpty)
        camera.send(100, startsWithKey: true)
        #expect(camera.times[0].count == 100)
        #expect(RTSPSource.configurationTimeout > .seconds(28), "the connection does not last that long")
    }
}
