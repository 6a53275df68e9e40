import ApusCommands
import Foundation
import Testing

@Suite("Recordings of a former account (IV-B10, IV-C5)")
struct RecordingTimeTests {
    private func content(_ json: String, of action: String, since: UInt64 = 1000) -> String {
        String(
            decoding: CommandContent.content(Data(json.utf8), of: "Action.\(action)", since: since), as: UTF8.self)
    }

    @Test(
        "A command names no time of recordings from before the device's data was its account's",
        arguments: [
            ("_recordings", #"{"source":0,"from":5,"to":9000}"#, #"{"source":0,"from":1000,"to":9000}"#),
            ("_recordings", #"{"source":0,"from":1000,"to":9000}"#, #"{"source":0,"from":1000,"to":9000}"#),
            ("_recordings", #"{"source":0,"from":5,"to":900}"#, #"{"source":0,"from":1000,"to":1000}"#),
            ("_playback", #"{"verb":"open","at":999}"#, #"{"verb":"open","at":1000}"#),
            ("_playback", #"{"verb":"seek","at":-1}"#, #"{"verb":"seek","at":1000}"#),
            ("_playback", #"{"verb":"seek","at":1e2}"#, #"{"verb":"seek","at":1000}"#),
            ("_playback", #"{"verb":"seek","at":0.5}"#, #"{"verb":"seek","at":1000}"#),
            ("_playback", #"{"verb":"seek","at":2000}"#, #"{"verb":"seek","at":2000}"#),
            ("_playback", #"{"verb":"pause"}"#, #"{"verb":"pause"}"#),
            ("unlock", #"{"from":5,"at":5}"#, #"{"from":5,"at":5}"#),
        ])
    func times(action: String, json: String, sent: String) {
        #expect(content(json, of: action) == sent)
        #expect(content(json, of: action, since: 0) == json, "a device that was never handed over")
    }

    @Test("Raw data is not looked at")
    func data() {
        let data = Data(#"{"from":5}"#.utf8)
        #expect(CommandContent.content(data, of: "", since: 1000) == data)
    }
}
