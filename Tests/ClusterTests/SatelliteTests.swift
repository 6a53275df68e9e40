import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import ApusWyoming
import Foundation
import Testing

@Suite("Wyoming satellites (docs/voice.md)", .serialized, .timeLimit(.minutes(3)))
struct SatelliteTests {
    private static func tone(_ sentence: Int) -> [Int16] {
        let frequency = Double(ScriptedEngine.frequency(sentence))
        return (0..<4800).map { Int16($0 % 3) }
            + (0..<11_200).map { Int16(8000 * sin(2 * .pi * frequency * Double($0) / 16_000)) }
    }

    @Test("A satellite is spoken to, plays the reply, and comes back after its connection broke")
    func spoken() async throws {
        let engine = try ScriptedEngine(["what time is it", "what day is it"])
        let satellite = try ScriptedSatellite()
        let cluster = try Cluster(
            nodes: 2, basePort: 24_840, environment: ["APUS_SPEECH_PROVIDERS": "unix:\(engine.path)"])
        defer {
            cluster.down()
            engine.end()
            satellite.end()
        }
        let bridge = try cluster.start("satellite", "kitchen", "--satellite", "unix:\(satellite.path)")
        defer { bridge.terminate() }
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "local"))
        defer { app.close() }
        try await eventually("the satellite waits for its wake word") { satellite.heard.isWaiting }
        // The bridge's session may not be there yet.
        try await eventually("a sentence is heard") {
            try await satellite.speak(Self.tone(0))
            return satellite.heard.transcripts.last == "what time is it"
        }
        try await eventually("the reply is played") { satellite.heard.replies >= 1 }
        let heard = satellite.heard
        let reply = try #require(heard.texts.last)
        #expect(reply.hasPrefix("It is ") && heard.rate == ScriptedEngine.sampleRate, "\(heard.texts)")
        #expect(heard.samples == ScriptedEngine.reply(reply))
        try await eventually("the dialog knows that it was played") {
            try await app.dialog(of: DeviceID(unchecked: "kitchen")).phase == .idle
        }

        // A pipeline that begins with the wake word is refused, and nothing of it is heard.
        try await satellite.speak(Self.tone(1), stage: "wake")
        #expect(satellite.heard.errors.last?.hasPrefix("\(ErrorCode.badParameter.number) ") == true)
        #expect(satellite.heard.transcripts.last == "what time is it")

        // Sound that cannot be read ends the sentence, and not the connection.
        try await satellite.speak(Self.tone(1), format: WyomingAudioFormat(rate: 16_000, width: 4, channels: 1))
        #expect(satellite.heard.errors.last?.hasPrefix("\(ErrorCode.mediaUnreadable.number) ") == true)
        #expect(satellite.heard.connections == 1)

        satellite.drop()
        try await eventually("it is connected again") {
            satellite.heard.connections >= 2 && satellite.heard.isWaiting
        }
        try await satellite.speak(Self.tone(1))
        #expect(satellite.heard.transcripts.last == "what day is it")
        // A sentence without words ends with an empty text, so that the satellite waits for its wake word again.
        try await satellite.speak([])
        #expect(satellite.heard.transcripts.last?.isEmpty == true, "\(satellite.heard.errors)")
        try await eventually("it is pinged") { satellite.heard.pings >= 2 }
    }
}
