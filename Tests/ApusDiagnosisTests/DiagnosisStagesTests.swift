import ApusContract
import ApusCore
import ApusDiagnosis
import SwiftProtobuf
import Testing

@Suite("The guilty stage of a black picture (IV-G4, IV-G9)")
struct DiagnosisStagesTests {
    /// A device that publishes, as its cluster sees it.
    static let view = ClientDiagnosisView.with {
        ($0.known, $0.bound, $0.online, $0.node, $0.lastSeen) = (true, true, 1, "n1", 900)
        ($0.asked, $0.answeredMs, $0.publishing, $0.publishingMs) = (true, 5, true, 60_001)
        ($0.frameMs, $0.keyMs, $0.configurationMs, $0.codecs) = (41, 801, 60_001, ["h264", "aac"])
    }
    /// An app that shows pictures.
    static let play = report(steps: [0, 0, 40, 60, 62, 63, 70, 80, 90], age: 5000)

    /// - Parameter steps: the times of the steps from the first one on, in milliseconds; -1: not reached.
    static func report(steps: [Int], age: UInt64) -> ClientPlayReport {
        .with { play in
            play.stepsMs = (0..<ClientPlayReport.stepCount).map { steps.count > $0 ? UInt32(steps[$0] + 1) : 0 }
            (play.ageMs, play.connected, play.rendersPictures, play.rendersSound) = (age, true, true, true)
            (play.session, play.device) = (String(repeating: "a", count: 32), "cam")
            if play.time(of: .packet) != nil { (play.receivedMs, play.received) = (41, 100) }
            if play.time(of: .decoded) != nil { (play.decodedMs, play.decoded) = (41, 100) }
            if play.time(of: .rendered) != nil { (play.renderedMs, play.rendered) = (41, 100) }
        }
    }

    /// A fault: what it makes of the view and the report, and what a diagnosis says.
    struct Fault: Sendable, CustomTestStringConvertible {
        var name: String
        var key: String
        var number: Double
        var unit: String
        var view: ClientDiagnosisView?
        var play: ClientPlayReport?
        var testDescription: String { name }

        init(
            _ name: String, _ key: String, _ number: Double, _ unit: String = "ms",
            change: (inout ClientDiagnosisView, inout ClientPlayReport) -> Void
        ) {
            (self.name, self.key, self.number, self.unit) = (name, key, number, unit)
            var (view, play) = (DiagnosisStagesTests.view, DiagnosisStagesTests.play)
            change(&view, &play)
            (self.view, self.play) = (view, play)
        }
    }

    static let faults: [Fault] = [
        Fault("no node can be reached", "network.unreachable", 3000) { _, play in
            play = report(steps: [0, 0], age: 3000)
            play.connected = false
        },
        Fault("no answer", "network.no_answer", 3000) { _, play in play = report(steps: [0, 0], age: 3000) },
        Fault("a slow connection", "network.slow", 1500) { _, play in
            play = report(steps: [0, 0, 1500, 1510, 1512, 1513, 1520, 1530, 1540], age: 5000)
        },
        Fault("an unknown device", "device.unknown", 8002, "error") { view, _ in view = .init() },
        Fault("an unbound device", "device.unbound", 8002, "error") { view, _ in view.bound = false },
        Fault("a disabled device", "device.disabled", 20_011, "error") { view, _ in view.disabled = true },
        Fault("a device that is away", "device.away", 100, "s") { view, _ in view.online = 0 },
        Fault("a device that has just gone", "device.lost", 0, "s") { view, _ in
            (view.node, view.asked, view.answeredMs, view.publishingMs, view.frameMs) = ("", false, 0, 0, 0)
        },
        Fault("a device that sleeps", "device.asleep", 70, "s") { view, _ in
            (view.online, view.onlineTime) = (2, 930)
        },
        Fault("a device that was stopped", "device.silent", 1000) { view, _ in
            (view.answeredMs, view.frameMs) = (0, 9001)
        },
        Fault("a refused app", "device.forbidden", 8003, "error") { _, play in
            play = report(steps: [0, 0], age: 100)
            play.streamError = 8003
        },
        Fault("no publisher", "publisher.none", 0, "streams") { view, _ in
            (view.publishing, view.publishingMs, view.frameMs, view.codecs) = (false, 0, 0, [])
        },
        Fault("no header", "header.missing", 60_000) { view, _ in view.codecs = [] },
        Fault("no picture", "codec.no_picture", 0, "tracks") { view, _ in view.codecs = ["aac"] },
        Fault("no decoder", "codec.no_decoder", 1, "tracks") { _, play in play.missingDecoder = "h264" },
        Fault("no frame", "data.none", 60_000) { view, _ in (view.frameMs, view.keyMs) = (0, 0) },
        Fault("no frame any more", "data.stopped", 4000) { view, _ in view.frameMs = 4001 },
        Fault("no key frame", "data.no_key", 60_000) { view, _ in view.keyMs = 0 },
        Fault("a stuck way to the app", "data.path", 3000) { _, play in play.receivedMs = 3001 },
        Fault("slow data", "data.slow", 1500) { _, play in
            play = report(steps: [0, 0, 40, 1500, 1510, 1512, 1540, 1550, 1560], age: 5000)
        },
        Fault("a decoder that fails", "decode.failed", 10_026, "error") { _, play in play.decodeError = 10_026 },
        Fault("a decoder that decodes nothing", "decode.none", 4930) { _, play in
            play = report(steps: [0, 0, 40, 60, 62, 63, 70], age: 5000)
        },
        Fault("a slow decoder", "decode.slow", 1500) { _, play in
            play = report(steps: [0, 0, 40, 60, 62, 63, 70, 1570, 1580], age: 5000)
        },
        Fault("a renderer that fails", "render.failed", 10_021, "error") { _, play in play.renderError = 10_021 },
        Fault("a slow renderer", "render.slow", 1500) { _, play in
            play = report(steps: [0, 0, 40, 60, 62, 63, 70, 80, 1580], age: 5000)
        },
        Fault("a slow median", "render.slow", 1200) { _, play in play.renderMedianMs = 1200 },
    ]

    static func diagnose(_ view: ClientDiagnosisView?, _ play: ClientPlayReport?) -> ClientDiagnosis {
        DiagnosisStage.diagnose(
            DiagnosisEvidence(device: "cam", source: 0, view: view, play: play, nowSeconds: 1000))
    }

    @Test("Each fault has its stage, its key and its number", arguments: faults)
    func fault(_ fault: Fault) throws {
        let answer = Self.diagnose(fault.view, fault.play)
        let guilty = try #require(answer.stages.first { $0.state == .guilty }, "\(answer)")
        #expect(guilty.key == fault.key && guilty.name == answer.guilty, "\(answer)")
        #expect(guilty.number == fault.number && guilty.unit == fault.unit, "\(guilty)")
        #expect(guilty.text == answer.text && !answer.text.isEmpty)
    }

    @Test("A picture that is shown has no guilty stage, and a delay of less than a second makes none")
    func healthy() {
        let answer = Self.diagnose(Self.view, Self.play)
        #expect(answer.guilty.isEmpty && answer.stages.allSatisfy { $0.state == .ok }, "\(answer)")
        let slow = Self.report(steps: [0, 0, 1000, 1100, 1200, 1210, 2000, 2900, 3000], age: 5000)
        #expect(Self.diagnose(Self.view, slow).guilty.isEmpty)
    }

    @Test("The cluster alone finds the device's faults, and the app alone its own")
    func halves() {
        #expect(Self.diagnose(Self.view, nil).guilty.isEmpty)
        #expect(Self.diagnose(.with { ($0.known, $0.bound) = (true, true) }, nil).guilty == "device")
        var play = Self.play
        play.decodeError = 10_026
        #expect(Self.diagnose(nil, play).guilty == "decode")
        #expect(Self.diagnose(nil, nil).stages.allSatisfy { $0.state == .unknown })
    }

    @Test(
        "Of several faults the first stage that is broken is guilty; later ones are not blamed (1000 random pairs)",
        arguments: 0..<20)
    func pairs(_ seed: UInt64) throws {
        var random = Seeded(state: seed &* 0x9E37_79B9_7F4A_7C15 | 1)
        let names = DiagnosisStage.live.map(\.name)
        for _ in 0..<50 {
            let answer = Self.diagnose(Self.randomView(&random), Self.randomPlay(&random))
            #expect(answer.stages.map(\.name) == names)
            let guilty = answer.stages.filter { $0.state == .guilty }
            #expect(guilty.count <= 1 && (guilty.first?.name ?? "") == answer.guilty, "\(answer)")
            #expect(!answer.text.isEmpty && answer.stages.allSatisfy { !$0.text.isEmpty && $0.state != .unspecified })
            #expect(answer.stages.allSatisfy { $0.key.hasPrefix("\($0.name).") && $0.number.isFinite })
            // With the guilty stage mended, no stage before it becomes guilty.
            guard let first = guilty.first, let index = names.firstIndex(of: first.name) else { continue }
            let before = answer.stages[..<index]
            #expect(before.allSatisfy { $0.state == .ok || $0.state == .unknown })
            #expect(first.key.hasSuffix(".slow") || !before.contains { $0.key.hasSuffix(".blocked") }, "\(answer)")
        }
    }

    private static func randomView(_ random: inout Seeded) -> ClientDiagnosisView? {
        guard random.chance(90) else { return nil }
        return .with {
            ($0.known, $0.bound, $0.disabled) = (random.chance(90), random.chance(90), random.chance(10))
            ($0.online, $0.onlineTime) = (UInt32(random.below(4)), Int64(random.below(2000)))
            ($0.lastSeen, $0.asked, $0.answeredMs) = (
                Int64(random.below(2000)), random.chance(50), UInt32(random.below(3))
            )
            $0.publishingMs = random.age()
            ($0.frameMs, $0.keyMs) = (random.age(), random.age())
            $0.codecs = [["h264"], ["aac"], [], ["h265", "opus"]][Int(random.below(4))]
            ($0.channelError, $0.deviceError) = (random.chance(10) ? 10_010 : 0, random.chance(10) ? 10_010 : 0)
        }
    }

    private static func randomPlay(_ random: inout Seeded) -> ClientPlayReport? {
        guard random.chance(80) else { return nil }
        return .with { play in
            play.stepsMs = (0..<random.below(15)).map { _ in UInt32(random.age() & 0xffff) }
            (play.ageMs, play.receivedMs, play.decodedMs) = (random.age(), random.age(), random.age())
            (play.renderedMs, play.renderMedianMs) = (random.age(), UInt32(random.below(2500)))
            (play.rendersPictures, play.rendersSound) = (random.chance(50), random.chance(50))
            play.codecs = random.chance(50) ? ["h264"] : []
            play.missingDecoder = random.chance(10) ? "h265" : ""
            play.streamError = random.chance(10) ? [8002, 8003, 20_011, 10_006][Int(random.below(4))] : 0
            (play.decodeError, play.renderError) = (random.chance(10) ? 10_026 : 0, random.chance(10) ? 10_021 : 0)
            (play.connected, play.rendered, play.decoded) = (random.chance(50), random.below(3), random.below(3))
        }
    }
}

/// A small generator with a seed: xorshift64*.
struct Seeded {
    var state: UInt64

    mutating func next() -> UInt64 {
        state ^= state >> 12
        state ^= state << 25
        state ^= state >> 27
        return state &* 0x2545_F491_4F6C_DD1D
    }

    mutating func below(_ bound: UInt64) -> UInt64 { next() % bound }
    mutating func chance(_ percent: UInt64) -> Bool { below(100) < percent }
    /// None, or an age around the bounds of the rules, or the largest one.
    mutating func age() -> UInt64 {
        switch below(10) {
        case 0...2: 0
        case 3: 999_999_999_999
        default: below(5000)
        }
    }
}
