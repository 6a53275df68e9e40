import ApusContract
import ApusCore
import ApusDialogs
import SwiftProtobuf

/// Homes for tests.
enum VoiceHomes {
    /// A speaker in the kitchen hears.
    static let speaker = DeviceID(unchecked: "speaker")

    static func device(
        _ id: String, _ names: [String], _ kind: String, area: String = "", _ controls: ClientVoiceControl...
    ) -> ClientVoiceDevice {
        .with {
            ($0.id, $0.device, $0.names, $0.kind, $0.area) = (id, "dev-\(id)", names, kind, area)
            $0.controls = controls
        }
    }

    static func control(
        _ what: String, _ path: String, state: String = "", on: String = "", off: String = "",
        risk: ClientVoiceRisk = .unspecified
    ) -> ClientVoiceControl {
        .with {
            ($0.what, $0.path, $0.statePath, $0.onJson, $0.offJson, $0.risk) = (what, path, state, on, off, risk)
        }
    }

    static let power = control("power", "ProWritable.power", on: "1", off: "0")

    static let content = ClientVoiceHome.with {
        $0.timeZone = "Europe/Berlin"
        $0.areas = [
            .with { ($0.id, $0.names) = ("kitchen", ["kitchen", "厨房"]) },
            .with { ($0.id, $0.names) = ("garage", ["garage", "车库"]) },
            .with { ($0.id, $0.names) = ("hall", ["hall", "门厅"]) },
        ]
        var hears = device("speaker", ["speaker"], "speaker", area: "kitchen", control("volume", "ProWritable.volume"))
        hears.device = speaker.rawValue
        $0.devices = [
            hears,
            device(
                "lamp", ["desk lamp", "台灯"], "light", area: "hall", power, control("brightness", "ProWritable.level")),
            device("kl", ["ceiling light", "吊灯"], "light", area: "kitchen", power),
            device("gl", ["ceiling light", "吊灯"], "light", area: "garage", power),
            device("spot1", ["spot"], "light", area: "hall", power),
            device("spot2", ["spot"], "light", area: "garage", power),
            device(
                "door", ["front door", "前门"], "lock", area: "hall",
                control("lock", "Action.lock", state: "ProReadonly.locked", on: "1", off: "0")),
            device("garden", ["garden"], "camera"),
            device("safe", ["safe"], "lock", control("lock", "Action.lock", risk: .never)),
            device("gate", ["garage gate"], "cover", area: "garage", control("position", "ProWritable.position")),
            device("bolt", ["garage door"], "door", area: "garage", control("open", "ProWritable.open")),
            device(
                "alarm", ["alarm box"], "alarm", control("alarm", "ProWritable.mode", on: #""away""#, off: #""off""#)),
            device(
                "thermo", ["thermostat"], "climate", area: "kitchen",
                control("temperature", "ProWritable.target", state: "ProReadonly.temperature")),
        ]
    }

    static func reader(
        _ language: String = "en", sentences: UserSentences = UserSentences(), lastReply: String = ""
    ) throws -> SentenceReader {
        let home = try VoiceHome(checking: content)
        // 2026-11-30, a Monday, 14:07 in Berlin.
        return try SentenceReader(
            home, language: language, sentences: sentences, speaker: speaker, now: 1_796_044_020_000,
            lastReply: lastReply)
    }
}
