import ApusContract
import ApusCore
import ApusDialogs
import SwiftProtobuf
import Testing

@Suite("Sentences in a home: what they mean, what is asked, and what is never guessed (VA, docs/voice.md)")
struct SentenceReaderTests {
    /// A sentence, and its plan in short: the intent, then the steps, or the reply.
    struct Case: Sendable, CustomTestStringConvertible {
        let text: String
        let plan: String
        init(_ text: String, _ plan: String) { (self.text, self.plan) = (text, plan) }
        var testDescription: String { text }
    }

    static func short(_ plan: DialogPlan) -> String {
        let steps = plan.steps.map { "\($0.entry) \($0.kind) \($0.path)\($0.kind == .read ? "" : " " + $0.json)" }
        return ([plan.intent] + (plan.steps.isEmpty ? ["\(plan.outcome): \(plan.reply)"] : steps))
            .joined(separator: "; ")
    }

    static let englishCases = [
        Case("Turn on the desk lamp, please", "DeviceOn; lamp write ProWritable.power.setVal 1"),
        Case("turn off the desk lamp", "DeviceOff; lamp write ProWritable.power.setVal 0"),
        Case("set the desk lamp to forty percent", "DeviceSet; lamp write ProWritable.level.setVal 40"),
        // Two have the name: that of the speaker's room, and that of the room that is named.
        Case("turn on the ceiling light", "DeviceOn; kl write ProWritable.power.setVal 1"),
        Case("turn on the ceiling light in the garage", "DeviceOn; gl write ProWritable.power.setVal 1"),
        Case("turn on the spot", "DeviceOn; asked: Which one: the one in the hall or the one in the garage?"),
        Case("turn on the desk lamp in the kitchen", "DeviceOn; refused: I know no desk lamp in the kitchen."),
        Case("turn on the lights", "DeviceOn; kl write ProWritable.power.setVal 1"),
        Case("turn off the fans in the kitchen", "DeviceOff; refused: I know no such device in the kitchen."),
        Case(
            "turn off all lights in the hall",
            "DeviceOff; lamp write ProWritable.power.setVal 0; spot1 write ProWritable.power.setVal 0"),
        Case("turn on the piano", "; notUnderstood: Sorry, I did not understand that."),
        Case("turn on the lights in the cellar", "; notUnderstood: Sorry, I did not understand that."),
        Case("lock the front door", "DeviceLock; door act Action.lock.ctlVal 1"),
        Case("unlock the front door", "DeviceUnlock; asked: Shall I unlock the front door?"),
        Case("lock the safe", "DeviceLock; refused: I may not do that with the safe by voice."),
        Case("unlock the safe", "DeviceUnlock; refused: I may not do that with the safe by voice."),
        Case("open the garage door", "DeviceOpen; asked: Shall I open the garage door?"),
        Case("close the garage door", "DeviceClose; bolt write ProWritable.open.setVal false"),
        Case("open the garage gate", "DeviceOpen; gate write ProWritable.position.setVal 100"),
        Case("is the front door locked", "DeviceGet; door read ProReadonly.locked.stVal"),
        Case("what is the temperature", "DeviceGet; thermo read ProReadonly.temperature.stVal"),
        Case("how warm is it in the kitchen", "DeviceGet; thermo read ProReadonly.temperature.stVal"),
        Case("set the temperature to 21.5 degrees", "DeviceSet; thermo write ProWritable.target.setVal 21.5"),
        Case("set the temperature in the hall to 20 degrees", "DeviceSet; refused: I know no such device in the hall."),
        Case("arm the alarm for the night", #"AlarmArm; alarm write ProWritable.mode.setVal "night""#),
        Case("arm the alarm", #"AlarmArm; alarm write ProWritable.mode.setVal "away""#),
        Case("disarm the alarm", "AlarmDisarm; asked: Shall I disarm the alarm box?"),
        Case("set the volume to 30 percent", "VolumeSet; speaker write ProWritable.volume.setVal 30"),
        Case("louder", "VolumeUp; speaker adjust ProWritable.volume.setVal 10"),
        Case("turn it down a bit", "VolumeDown; speaker adjust ProWritable.volume.setVal -10"),
        Case("make the desk lamp brighter", "DeviceRaise; lamp adjust ProWritable.level.setVal 10"),
        Case("dim the desk lamp", "DeviceLower; lamp adjust ProWritable.level.setVal -10"),
        Case("dim the lights in the hall", "DeviceLower; lamp adjust ProWritable.level.setVal -10"),
        // The setting is changed, and not what is measured.
        Case("make it warmer", "DeviceRaise; thermo adjust ProWritable.target.setVal 1"),
        Case("it's too hot", "DeviceLower; thermo adjust ProWritable.target.setVal -1"),
        Case("make the hall warmer", "DeviceRaise; refused: I know no such device in the hall."),
        Case("brighten the ceiling light", "DeviceRaise; refused: The ceiling light cannot do that."),
        Case("dim the ceiling light to half", "DeviceSet; refused: The ceiling light cannot do that."),
        Case("call the front door", #"CallStart; speaker direct Calls.Start {"device":"dev-door"}"#),
        Case("hang up", "CallEnd; speaker direct Calls.End {}"),
        Case("show the garden", "CameraShow; refused: I do not know which screen you mean."),
        Case("what time is it", "TimeGet; done: It is 2:07 PM."),
        Case("what day is it", "DateGet; done: Today is Monday, November 30, 2026."),
        Case("yes", "Yes; refused: There is nothing to confirm."),
        Case("stop", "Stop;  timer stop 0"),
        Case("set a timer for one hour and thirty minutes", "TimerSet;  timer set 5400000"),
        // 7 PM of the same day, and 7 AM of the next one.
        Case("wake me at seven", "AlarmSet;  timer alarm 1796061600000"),
        Case("wake me at twelve at night", "AlarmSet;  timer alarm 1796079600000"),
        Case("wake me at ten to one", "AlarmSet;  timer alarm 1796082600000"),
        Case("what is the humidity in the kitchen", "DeviceGet; refused: I know no such device in the kitchen."),
        Case("arm the alarm for home", #"AlarmArm; alarm write ProWritable.mode.setVal "home""#),
        Case("wake me at seven am", "AlarmSet;  timer alarm 1796104800000"),
        Case("wake me at half past six in the morning on wednesday", "AlarmSet;  timer alarm 1796189400000"),
        Case("set an alarm for ten to six pm", "AlarmSet;  timer alarm 1796057400000"),
        Case("how much time is left", "TimerQuery; done: There is no timer."),
        Case("cancel the timer", "TimerCancel; refused: There is no timer."),
        Case("say that again", "Repeat; done: The one before."),
        Case("", "; notUnderstood: Sorry, I did not understand that."),
    ]

    @Test("English", arguments: englishCases)
    func english(_ example: Case) throws {
        let reader = try VoiceHomes.reader(lastReply: "The one before.")
        #expect(Self.short(reader.plan(of: example.text, answering: nil)) == example.plan)
    }

    static let chineseCases = [
        Case("打开台灯", "DeviceOn; lamp write ProWritable.power.setVal 1"),
        Case("关闭厨房的吊灯", "DeviceOff; kl write ProWritable.power.setVal 0"),
        Case("现在几点", "TimeGet; done: 现在是14点07分。"),
        Case("锁上前门", "DeviceLock; door act Action.lock.ctlVal 1"),
        Case("打开钢琴", "; notUnderstood: 对不起，我没听懂。"),
    ]

    @Test("Chinese", arguments: chineseCases)
    func chinese(_ example: Case) throws {
        let reader = try VoiceHomes.reader("zh-CN")
        #expect(Self.short(reader.plan(of: example.text, answering: nil)) == example.plan)
    }

    /// The question of a sentence.
    private static func question(_ reader: SentenceReader, _ text: String) -> DialogQuestion {
        .with { $0.choices = reader.plan(of: text, answering: nil).choices }
    }

    @Test("A guarded sentence needs a yes, and anything else is not one")
    func guarded() throws {
        let reader = try VoiceHomes.reader()
        let question = Self.question(reader, "unlock the front door")
        let yes = reader.plan(of: "yes", answering: question)
        #expect(Self.short(yes) == "DeviceUnlock; door act Action.lock.ctlVal 0")
        for text in ["no", "never mind"] {
            let plan = reader.plan(of: text, answering: question)
            #expect(plan.steps.isEmpty && plan.choices.isEmpty && plan.outcome == .done, "\(text)")
        }
        let other = reader.plan(of: "turn on the desk lamp", answering: question)
        #expect(other.steps.map(\.entry) == ["lamp"])
        let noise = reader.plan(of: "the front door", answering: question)
        #expect(noise.steps.isEmpty && noise.outcome == .notUnderstood)
    }

    @Test(
        "An answer chooses one of those that were asked about, and no other",
        arguments: [
            ("the one in the garage", "spot2"), ("garage", "spot2"), ("in the hall", "spot1"),
            ("the hall one", "spot1"),
            ("kitchen", ""), ("yes", ""), ("no", ""), ("spot", "asked"),
        ])
    func choices(text: String, chosen: String) throws {
        let reader = try VoiceHomes.reader()
        let plan = reader.plan(of: text, answering: Self.question(reader, "turn on the spot"))
        switch chosen {
        case "": #expect(plan.steps.isEmpty && plan.choices.isEmpty)
        case "asked": #expect(plan.outcome == .asked && plan.choices.count == 2)
        default: #expect(plan.steps.map(\.entry) == [chosen] && plan.intent == "DeviceOn")
        }
    }

    /// What makes a home that is not valid of a valid one.
    static let damages: [(String, @Sendable (inout ClientVoiceHome) -> Void)] = [
        ("an unknown area", { $0.devices[1].area = "cellar" }),
        ("an id twice", { $0.devices[1].id = "kl" }),
        ("no name", { $0.devices[1].names = [] }),
        ("a name that is too long", { $0.devices[1].names = [String(repeating: "a", count: 65)] }),
        ("an unknown kind", { $0.devices[1].kind = "lamp" }),
        ("an unknown control", { $0.devices[1].controls[0].what = "colour" }),
        ("a control twice", { $0.devices[1].controls[1].what = "power" }),
        ("a state that is set", { $0.devices[1].controls[0].path = "ProReadonly.power" }),
        ("an action of the cluster", { $0.devices[1].controls[0].path = "Action._localAccess" }),
        ("no path", { $0.devices[1].controls[0].path = "" }),
        ("no JSON", { $0.devices[1].controls[0].onJson = "{" }),
        ("no device", { $0.devices[1].device = "" }),
        ("an unknown zone", { $0.timeZone = "Europe/Nowhere" }),
        ("an unknown language", { $0.language = "tlh" }),
        (
            "too many areas",
            { home in
                home.areas = (0..<65).map { number in .with { ($0.id, $0.names) = ("a\(number)", ["a\(number)"]) } }
            }
        ),
    ]

    @Test("A home that is not valid is refused, and the reason names what is wrong", arguments: damages.indices)
    func invalidHomes(index: Int) {
        var home = VoiceHomes.content
        Self.damages[index].1(&home)
        #expect(throws: ApusError.self, "\(Self.damages[index].0)") { try VoiceHome(checking: home) }
    }
}
