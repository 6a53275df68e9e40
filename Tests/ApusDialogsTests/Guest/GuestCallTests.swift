import ApusContract
import ApusCore
import ApusDialogs
import ApusTestKit
import SwiftProtobuf
import Testing

@Suite("Tool calls of a language model are sentences of the grammar (VA, docs/voice.md)")
struct GuestCallTests {
    /// Calls, and their plan in short as in `SentenceReaderTests`.
    struct Case: Sendable, CustomTestStringConvertible {
        let calls: [GuestCall]
        let plan: String
        let testDescription: String

        init(_ name: String, _ arguments: String, _ plan: String) { self.init([(name, arguments)], plan) }

        init(_ calls: [(String, String)], _ plan: String) {
            self.calls = calls.map { GuestCall($0.0, JSONValue(ArraySlice("{\($0.1)}".utf8)) ?? .null) }
            self.plan = plan
            testDescription = calls.map { "\($0.0) {\($0.1)}" }.joined(separator: ", ")
        }
    }

    private static let rejected = "; notUnderstood: Sorry, I did not understand that."

    static let understood = [
        Case("control", #""action":"turn_on","name":"desk lamp""#, "DeviceOn; lamp write ProWritable.power.setVal 1"),
        Case("control", #""action":"turn_off","name":"台灯""#, "DeviceOff; lamp write ProWritable.power.setVal 0"),
        // The area of the listening device decides, and then the area of the call.
        Case("control", #""action":"turn_on","name":"ceiling light""#, "DeviceOn; kl write ProWritable.power.setVal 1"),
        Case(
            "control", #""action":"turn_on","name":"ceiling light","area":"garage""#,
            "DeviceOn; gl write ProWritable.power.setVal 1"),
        Case(
            "control", #""action":"turn_on","name":"spot","area":"""#,
            "DeviceOn; asked: Which one: the one in the hall or the one in the garage?"),
        Case(
            "control", #""action":"turn_on","name":"desk lamp","area":"kitchen""#,
            "DeviceOn; refused: I know no desk lamp in the kitchen."),
        Case(
            "control", #""action":"brighter","name":"desk lamp","area":"hall""#,
            "DeviceRaise; lamp adjust ProWritable.level.setVal 10"),
        Case(
            "control", #""action":"warmer","name":"thermostat""#,
            "DeviceRaise; thermo adjust ProWritable.target.setVal 1"),
        Case(
            "control", #""action":"quieter","name":"speaker""#,
            "DeviceLower; speaker adjust ProWritable.volume.setVal -10"),
        Case(
            "control", #""action":"lock","name":"front door","area":null"#,
            "DeviceLock; door act Action.lock.ctlVal 1"),
        Case(
            "control", #""action":"close","name":"garage door""#,
            "DeviceClose; bolt write ProWritable.open.setVal false"),
        Case(
            "control", #""action":"close","name":"garage gate""#,
            "DeviceClose; gate write ProWritable.position.setVal 0"),
        Case(
            "control", #""action":"unlock","name":"safe""#,
            "DeviceUnlock; refused: I may not do that with the safe by voice."),
        Case(
            "group", #""action":"turn_off","kind":"light","area":"hall""#,
            "DeviceOff; lamp write ProWritable.power.setVal 0; spot1 write ProWritable.power.setVal 0"),
        Case(
            "set", #""what":"brightness","value":40,"name":"desk lamp""#,
            "DeviceSet; lamp write ProWritable.level.setVal 40"),
        Case(
            "set", #""what":"brightness","value":"40.0","name":"desk lamp""#,
            "DeviceSet; lamp write ProWritable.level.setVal 40"),
        Case("set", #""what":"temperature","value":21.5"#, "DeviceSet; thermo write ProWritable.target.setVal 21.5"),
        Case(
            "set", #""what":"temperature","value":2e1,"area":"kitchen""#,
            "DeviceSet; thermo write ProWritable.target.setVal 20"),
        Case(
            "set", #""what":"temperature","value":19,"name":"thermostat""#,
            "DeviceSet; thermo write ProWritable.target.setVal 19"),
        Case("set", #""what":"volume","value":30"#, "VolumeSet; speaker write ProWritable.volume.setVal 30"),
        Case(
            "set", #""what":"volume","value":30,"name":"speaker""#,
            "DeviceSet; speaker write ProWritable.volume.setVal 30"),
        Case(
            "set", #""what":"position","value":0,"name":"garage gate""#,
            "DeviceSet; gate write ProWritable.position.setVal 0"),
        Case("read", #""what":"state","name":"front door""#, "DeviceGet; door read ProReadonly.locked.stVal"),
        Case("read", #""what":"temperature","area":"kitchen""#, "DeviceGet; thermo read ProReadonly.temperature.stVal"),
        Case("read", #""what":"temperature""#, "DeviceGet; thermo read ProReadonly.temperature.stVal"),
        Case("read", #""what":"brightness","name":"desk lamp""#, "DeviceGet; lamp read ProWritable.level.setVal"),
        Case("call", #""name":"front door""#, #"CallStart; speaker direct Calls.Start {"device":"dev-door"}"#),
        Case("show_camera", #""name":"garden""#, "CameraShow; refused: I do not know which screen you mean."),
        Case(
            "alarm_system", #""action":"arm","mode":"night""#, #"AlarmArm; alarm write ProWritable.mode.setVal "night""#
        ),
        Case("alarm_system", #""action":"arm""#, #"AlarmArm; alarm write ProWritable.mode.setVal "away""#),
        Case("timer", #""action":"set","minutes":10"#, "TimerSet;  timer set 600000"),
        Case("timer", #""action":"set","hours":1,"minutes":30,"seconds":0"#, "TimerSet;  timer set 5400000"),
        Case("timer", #""action":"set","seconds":90"#, "TimerSet;  timer set 90000"),
        Case("timer", #""action":"set","hours":5,"minutes":1,"seconds":2"#, "TimerSet;  timer set 18062000"),
        Case("timer", #""action":"set","hours":24"#, "TimerSet;  timer set 86400000"),
        Case("timer", #""action":"time_left""#, "TimerQuery; done: There is no timer."),
        Case("timer", #""action":"cancel","minutes":10"#, "TimerCancel; refused: There is no timer."),
        Case("timer", #""action":"cancel_all","hours":0"#, "TimerCancel; refused: There is no timer."),
        Case("timer", #""action":"pause""#, "TimerPause; refused: There is no timer."),
        Case("alarm_clock", #""action":"set","hour":7"#, "AlarmSet;  timer alarm 1796104800000"),
        Case("alarm_clock", #""action":"set","hour":19,"minute":0"#, "AlarmSet;  timer alarm 1796061600000"),
        Case(
            "alarm_clock", #""action":"set","hour":6,"minute":30,"day":"wednesday""#,
            "AlarmSet;  timer alarm 1796189400000"),
        // Five past midnight.
        Case("alarm_clock", #""action":"set","hour":0,"minute":5"#, "AlarmSet;  timer alarm 1796079900000"),
        Case("alarm_clock", #""action":"cancel","day":"tomorrow""#, "AlarmCancel; refused: There is no alarm."),
        Case("alarm_clock", #""action":"cancel","hour":7"#, "AlarmCancel; refused: There is no alarm."),
        Case("alarm_clock", #""action":"cancel_all""#, "AlarmCancel; refused: There is no alarm."),
        // Several calls are one plan.
        Case(
            [("control", #""action":"turn_off","name":"desk lamp""#), ("set", #""what":"temperature","value":18"#)],
            "DeviceOff; lamp write ProWritable.power.setVal 0; thermo write ProWritable.target.setVal 18"),
        Case(
            [("timer", #""action":"set","minutes":5"#), ("timer", #""action":"set","minutes":6"#)],
            "TimerSet;  timer set 300000;  timer set 360000"),
        // Two changes of one setting have no order.
        Case(
            [
                ("control", #""action":"turn_on","name":"desk lamp""#),
                ("control", #""action":"turn_off","name":"desk lamp""#),
            ], "DeviceOn; lamp write ProWritable.power.setVal 1"),
        // What is refused is said, and nothing is done.
        Case(
            [("control", #""action":"turn_on","name":"desk lamp""#), ("control", #""action":"lock","name":"safe""#)],
            "DeviceLock; refused: I may not do that with the safe by voice."),
    ]

    @Test("A call means what the sentence means", arguments: understood)
    func calls(_ example: Case) throws {
        #expect(SentenceReaderTests.short(try VoiceHomes.reader().plan(of: .calls(example.calls))) == example.plan)
    }

    static let notUnderstood = [
        ("control", #""action":"turn_on","name":"piano""#), ("control", #""action":"turn_on","name":"Desk Lamp""#),
        ("control", #""action":"turn_on""#), ("control", #""name":"desk lamp""#), ("control", ""),
        ("control", #""action":"explode","name":"desk lamp""#), ("control", #""action":"DeviceOn","name":"desk lamp""#),
        ("control", #""action":"turn_on","name":"all lights everywhere""#),
        ("control", #""action":"turn_on","name":"desk lamp and the front door""#),
        ("control", #""action":"turn_on","name":["desk lamp"]"#), ("control", #""action":"turn_on","name":7"#),
        ("control", #""action":"turn_on","name":"desk lamp","area":"cellar""#),
        // A delay would be done at once if it was ignored.
        ("control", #""action":"turn_on","name":"desk lamp","delay":600"#),
        // The grammar does not switch a lock, and does not set the position of a door.
        ("control", #""action":"turn_on","name":"front door""#),
        ("set", #""what":"position","value":100,"name":"garage door""#),
        ("set", #""what":"lock","value":0,"name":"front door""#), ("set", #""what":"brightness","name":"desk lamp""#),
        ("set", #""what":"brightness","value":140,"name":"desk lamp""#),
        ("set", #""what":"brightness","value":-1,"name":"desk lamp""#),
        ("set", #""what":"brightness","value":40.5,"name":"desk lamp""#),
        ("set", #""what":"brightness","value":"half","name":"desk lamp""#),
        ("set", #""what":"temperature","value":21.3"#), ("set", #""what":"temperature","value":99"#),
        ("set", #""what":"position","value":10"#), ("set", #""what":"volume","value":10,"area":"hall""#),
        ("group", #""action":"turn_off","kind":"light""#), ("group", #""action":"open","kind":"light","area":"hall""#),
        ("group", #""action":"turn_on","kind":"cover","area":"garage""#),
        ("group", #""action":"turn_off","kind":"fan","area":"hall""#),
        ("group", #""action":"turn_off","kind":"light","area":"everywhere""#),
        ("read", #""what":"lock","name":"front door""#), ("read", #""what":"state""#),
        ("call", #""name":"desk lamp""#), ("call", ""), ("show_camera", #""name":"desk lamp""#),
        ("show_camera", #""name":"garden","screen":"speaker""#), ("alarm_system", #""action":"off""#),
        ("alarm_system", #""action":"disarm","mode":"home""#), ("timer", #""action":"set""#),
        ("timer", #""action":"set","minutes":0"#), ("timer", #""action":"set","minutes":1.5"#),
        ("timer", #""action":"set","minutes":-5"#), ("timer", #""action":"set","hours":25"#),
        ("timer", #""action":"set","hours":4,"seconds":10"#), ("timer", #""action":"pause","minutes":1"#),
        ("alarm_clock", #""action":"set""#), ("alarm_clock", #""action":"set","hour":24"#),
        ("alarm_clock", #""action":"set","hour":7,"minute":60"#), ("alarm_clock", #""action":"cancel","minute":5"#),
        ("shell", #""command":"reboot""#), ("DeviceUnlock", #""name":"front door""#), ("yes", ""), ("", ""),
    ]

    @Test(
        "An unknown function, name, parameter or value is not understood, and never means more",
        arguments: notUnderstood)
    func rejected(name: String, arguments: String) throws {
        let reader = try VoiceHomes.reader()
        let (bad, good) = (
            Case(name, arguments, "").calls[0], Case("control", #""action":"turn_on","name":"desk lamp""#, "").calls[0]
        )
        #expect(SentenceReaderTests.short(reader.plan(of: .calls([bad]))) == Self.rejected)
        #expect(SentenceReaderTests.short(reader.plan(of: .calls([good, bad]))) == Self.rejected)
    }

    @Test("Five calls are too many")
    func tooMany() throws {
        let names = ["desk lamp", "ceiling light", "front door", "thermostat"]
        let calls = names.map {
            GuestCall("read", JSONValue(ArraySlice(#"{"what":"state","name":"\#($0)"}"#.utf8)) ?? .null)
        }
        let reader = try VoiceHomes.reader()
        #expect(reader.plan(of: .calls(calls)).steps.count == 4)
        #expect(SentenceReaderTests.short(reader.plan(of: .calls(calls + calls.prefix(1)))) == Self.rejected)
        #expect(SentenceReaderTests.short(reader.plan(of: .calls([]))) == Self.rejected)
    }

    static let opening = [
        ("control", #""action":"unlock","name":"front door""#, "Shall I unlock the front door?"),
        ("control", #""action":"open","name":"garage door""#, "Shall I open the garage door?"),
        // A person opens it without a question.
        ("control", #""action":"open","name":"garage gate""#, "Shall I open the garage gate?"),
        ("group", #""action":"open","kind":"cover","area":"garage""#, "Shall I open the garage gate?"),
        ("set", #""what":"position","value":30,"name":"garage gate""#, "Shall I change the garage gate?"),
        ("alarm_system", #""action":"disarm""#, "Shall I disarm the alarm box?"),
    ]

    @Test(
        "What opens, unlocks or disarms is asked about, whatever the home says, and a yes does it", arguments: opening)
    func openings(name: String, arguments: String, question: String) throws {
        var home = VoiceHomes.content
        for index in home.devices.indices where home.devices[index].id != "safe" {
            for control in home.devices[index].controls.indices {
                home.devices[index].controls[control].risk = .harmless
            }
        }
        let reader = try SentenceReader(
            VoiceHome(checking: home), language: "en", speaker: VoiceHomes.speaker, now: 1_796_044_020_000)
        let lamp = Case("control", #""action":"turn_on","name":"desk lamp""#, "").calls
        for calls in [Case(name, arguments, "").calls, lamp + Case(name, arguments, "").calls] {
            let plan = reader.plan(of: .calls(calls))
            #expect(plan.steps.isEmpty && plan.outcome == .asked && plan.reply == question, "\(plan)")
            let yes = reader.plan(of: "yes", answering: .with { $0.choices = plan.choices })
            #expect(yes.steps.count == calls.count && yes.choices.isEmpty, "\(yes)")
        }
    }

    @Test("In another language the names and the replies are those of the home")
    func chinese() throws {
        let reader = try VoiceHomes.reader("zh-CN")
        let lamp = reader.plan(of: .calls(Case("control", #""action":"turn_on","name":"台灯""#, "").calls))
        #expect(SentenceReaderTests.short(lamp) == "DeviceOn; lamp write ProWritable.power.setVal 1")
        let door = reader.plan(of: .calls(Case("control", #""action":"unlock","name":"前门""#, "").calls))
        #expect(door.outcome == .asked && door.reply.contains("front door"), "\(door)")
        #expect(SentenceReaderTests.short(reader.plan(of: .nothing)) == "; notUnderstood: 对不起，我没听懂。")
        #expect(SentenceReaderTests.short(reader.plan(of: .text("好的。"))) == "; done: 好的。")
    }

    @Test("No random call opens anything without a question, or concerns another device", arguments: 0..<10)
    func random(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        let reader = try VoiceHomes.reader()
        let devices = Set(VoiceHomes.content.devices.map(\.device))
        let names = VoiceHomes.content.devices.flatMap(\.names)
        let actions = "turn_on turn_off open close lock unlock brighter dimmer arm disarm set cancel".split(
            separator: " ")
        let words = ["cover", "light", "brightness", "position", "volume", "state", "night"]
        let pools: [(key: String, values: [String])] = [
            ("action", actions.map { #""\#($0)""# }), ("name", names.map { #""\#($0)""# }),
            ("area", ["kitchen", "garage", "hall"].map { #""\#($0)""# }), ("what", words.map { #""\#($0)""# }),
            ("kind", [#""cover""#, #""light""#]), ("value", ["0", "21.5", "40", "100", #""7""#, "null", "-1"]),
            ("hour", ["0", "7", "30"]), ("minutes", ["0", "5"]),
        ]
        let functions: [(name: String, keys: [Int])] = [
            ("control", [0, 1, 2]), ("group", [0, 2, 4]), ("set", [1, 2, 3, 5]), ("read", [1, 2, 3]), ("call", [1]),
            ("alarm_system", [0]), ("timer", [0, 7]), ("alarm_clock", [0, 6]),
        ]
        var understood = 0
        for _ in 0..<3_000 {
            let calls = (0..<Int.random(in: 1...2, using: &random)).map { _ in
                let function = functions[Int.random(in: 0..<functions.count, using: &random)]
                let members = pools.indices.compactMap { index -> String? in
                    let chance = function.keys.contains(index) ? 2 : 40
                    guard Int.random(in: 0..<chance, using: &random) == 0 else { return nil }
                    let values = pools[Int.random(in: 0..<20, using: &random) == 0 ? 0 : index].values
                    return #""\#(pools[index].key)":\#(values[Int.random(in: 0..<values.count, using: &random)])"#
                }
                return GuestCall(
                    function.name, JSONValue(ArraySlice("{\(members.joined(separator: ","))}".utf8)) ?? .null)
            }
            let plan = reader.plan(of: .calls(calls))
            understood += plan.outcome == .notUnderstood ? 0 : 1
            #expect(plan.steps.count <= 16 && plan.choices.count <= 8)
            for step in plan.steps {
                #expect(devices.contains(step.device), "\(calls): \(step)")
                let isShut = [step.offJson, "0"].contains(step.json)
                switch step.what {
                case "open", "position": #expect(step.kind == .read || isShut, "\(calls): \(step)")
                case "lock", "alarm": #expect(step.kind == .read || step.json != step.offJson, "\(calls): \(step)")
                default: break
                }
            }
        }
        #expect(understood > 50, "\(understood)")
    }
}
