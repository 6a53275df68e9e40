import ApusCore
import ApusGrammar
import Testing

/// A text and its best meaning, as ``GrammarMatch/summary`` has it.
struct VoiceCase: Sendable, CustomTestStringConvertible {
    var intent: VoiceIntent
    /// The slots behind the name of the intent.
    var slots: String
    var texts: [String]

    init(_ intent: VoiceIntent, _ slots: String = "", _ texts: String...) {
        (self.intent, self.slots, self.texts) = (intent, slots, texts)
    }

    var testDescription: String { "\(intent.rawValue) \(slots)" }

    var summary: String { slots.isEmpty ? intent.rawValue : "\(intent.rawValue) \(slots)" }

    /// The context of a device that is in an area.
    static let context = [GrammarFact("area", "area-9")]
}

@Suite("The English templates")
struct EnglishTemplateTests {
    static let grammar = Result { try GrammarHome.grammar(.english) }

    static let cases = [
        VoiceCase(
            .deviceOn, "name=lamp-1", "turn on the desk lamp", "Could you please switch the desk lamp on?",
            "power on my desk lamp", "turn desk lamp on please", "I'd like the desk lamp on"),
        VoiceCase(.deviceOn, "area=area-1 name=socket-1", "turn on the coffee machine in the kitchen"),
        VoiceCase(.deviceOn, "name=lamp-3", "turn on the kitchen light"),
        VoiceCase(.deviceOn, "name=lamp-4|lamp-5", "turn on the reading lamp"),
        VoiceCase(
            .deviceOn, "area=area-1 kind=light", "turn on all lights in the kitchen", "turn on the kitchen lights",
            "switch all the lights on in the kitchen", "turn the lamps in the kitchen on"),
        VoiceCase(
            .deviceOn, "kind=light scope=everywhere", "turn on all the lights everywhere",
            "turn on all lights in the whole house", "switch the lights on in every room"),
        VoiceCase(
            .deviceOn, "area=area-9 kind=light", "turn on the lights", "turn the lights on in here",
            "let there be light", "lights on"),
        VoiceCase(
            .deviceOff, "name=lamp-2", "turn off the ceiling light", "switch the ceiling light off",
            "i don't need the ceiling light on", "please shut off the ceiling light"),
        VoiceCase(
            .deviceOff, "area=area-2 kind=fan", "turn off the fans in the living room", "turn living room fans off"),
        VoiceCase(
            .deviceOff, "kind=climate scope=everywhere", "turn off all heaters everywhere",
            "turn the heating off in the entire house"),
        VoiceCase(
            .deviceOff, "area=area-9 kind=light", "turn off the lights", "lights off",
            "turn the lights off in this room"),
        VoiceCase(
            .deviceSet, "name=lamp-1 value=40 what=brightness", "set the desk lamp to 40%",
            "dim the desk lamp to forty percent",
            "set the brightness of the desk lamp to 40", "change desk lamp brightness to forty"),
        VoiceCase(
            .deviceSet, "name=lamp-1 value=50 what=brightness", "dim the desk lamp to half",
            "set the desk lamp to half brightness"),
        VoiceCase(
            .deviceSet, "name=lamp-1 value=100 what=brightness", "set the desk lamp to maximum",
            "put the desk lamp at full brightness"),
        VoiceCase(
            .deviceSet, "area=area-1 kind=light value=30 what=brightness", "dim the kitchen lights to 30 percent",
            "set all lights in the kitchen to thirty percent", "set the brightness in the kitchen to 30%"),
        VoiceCase(
            .deviceSet, "name=climate-1 value=21.5 what=temperature", "set the thermostat to 21.5 degrees",
            "set the temperature of the thermostat to twenty one point five", "heat the thermostat to 21.5°C"),
        VoiceCase(
            .deviceSet, "area=area-3 value=20 what=temperature", "set the temperature in the bedroom to twenty degrees",
            "set the bedroom temperature to 20°C", "heat the bedroom to 20 degrees celsius"),
        VoiceCase(
            .deviceSet, "area=area-9 value=22 what=temperature", "set the temperature to 22 degrees",
            "make it twenty two degrees"),
        VoiceCase(
            .deviceSet, "name=speaker-1 value=15 what=volume", "set the volume of the radio to 15",
            "set the radio volume to fifteen percent"),
        VoiceCase(
            .deviceSet, "name=cover-1 value=50 what=position", "open the bedroom blinds to 50%",
            "set the bedroom blinds to fifty percent"),
        VoiceCase(
            .deviceSet, "name=fan-1 value=70 what=speed", "set the fan to 70 percent", "set the fan speed to seventy"),
        VoiceCase(
            .deviceGet, "name=garage-1 state=open", "is the garage door open", "is the garage door still open?",
            "did I leave the garage door open"),
        VoiceCase(.deviceGet, "name=lock-1 state=closed", "is the front door closed", "is the front door shut"),
        VoiceCase(.deviceGet, "name=lock-2 state=locked", "is the back door locked", "did i lock the back door"),
        VoiceCase(.deviceGet, "name=lock-2 state=unlocked", "is the back door unlocked"),
        VoiceCase(
            .deviceGet, "name=socket-1 state=on", "is the coffee machine on", "did I leave the coffee machine on",
            "is the coffee machine still running"),
        VoiceCase(
            .deviceGet, "name=socket-1 state=off", "is the coffee machine off", "is the coffee machine switched off"),
        VoiceCase(.deviceGet, "state=armed", "is the alarm armed", "is the security system on"),
        VoiceCase(
            .deviceGet, "area=area-1 what=temperature", "what is the temperature in the kitchen",
            "what's the kitchen temperature",
            "how warm is it in the kitchen", "how cold is the kitchen"),
        VoiceCase(.deviceGet, "area=area-9 what=temperature", "what's the temperature", "how hot is it in here"),
        VoiceCase(
            .deviceGet, "name=lock-1|camera-1 what=battery", "what is the battery level of the front door",
            "what's the front door battery", "what is the front door's battery"),
        VoiceCase(
            .deviceGet, "name=climate-1 what=state", "what is the status of the thermostat",
            "how's the thermostat doing"),
        VoiceCase(
            .deviceOpen, "name=garage-1", "open the garage door", "please open up the garage door",
            "raise the garage door", "roll the garage door up"),
        VoiceCase(
            .deviceOpen, "area=area-2 kind=cover", "open all the blinds in the living room",
            "open the living room curtains"),
        VoiceCase(.deviceOpen, "kind=cover scope=everywhere", "open all blinds everywhere"),
        VoiceCase(
            .deviceClose, "name=garage-1", "close the garage door", "shut the garage door",
            "lower the garage door please", "roll the garage door down"),
        VoiceCase(
            .deviceClose, "area=area-3 kind=cover", "close the shutters in the bedroom", "close bedroom curtains"),
        VoiceCase(
            .deviceLock, "name=lock-1", "lock the front door", "lock up the front door",
            "make sure the front door is locked", "could you bolt the front door"),
        VoiceCase(
            .deviceUnlock, "name=lock-1", "unlock the front door", "please unlock front door",
            "let them in at the front door", "unbolt the front door"),
        VoiceCase(
            .alarmArm, "", "arm the alarm", "turn on the alarm system", "activate the security system",
            "set the burglar alarm"),
        VoiceCase(
            .alarmArm, "mode=away", "arm the alarm away", "arm the security system for leaving", "i'm leaving the house"
        ),
        VoiceCase(.alarmArm, "mode=night", "set the alarm to night mode", "arm the alarm for the night"),
        VoiceCase(.alarmArm, "mode=home", "arm the alarm home", "set the alarm to stay"),
        VoiceCase(
            .alarmDisarm, "", "disarm the alarm", "turn off the alarm system", "deactivate the security",
            "switch the alarm off"),
        VoiceCase(
            .callStart, "contact=contact-1", "call the front door", "talk to the front door",
            "connect me with the front door", "give the front door a ring"),
        VoiceCase(
            .callStart, "contact=contact-2", "call grandma", "please phone grandma", "make a video call to grandma",
            "I want to speak to grandma"),
        VoiceCase(
            .callAnswer, "", "answer the call", "pick up", "accept it", "i'll get it", "pick it up", "answer the door"),
        VoiceCase(
            .callDecline, "", "decline the call", "reject", "ignore it", "don't answer", "send them to voicemail"),
        VoiceCase(.callEnd, "", "hang up", "end the call", "hang up the phone", "goodbye"),
        VoiceCase(
            .cameraShow, "name=camera-2", "show the garden", "show me the garden camera", "bring up the garden",
            "who's in front of the garden"),
        VoiceCase(
            .cameraShow, "name=camera-2 screen=screen-1", "show the garden on the kitchen screen",
            "put the garden camera on the kitchen screen"),
        VoiceCase(.cameraShow, "name=camera-3", "show me camera one", "show camera 1"),
        VoiceCase(.cameraShow, "name=camera-1", "who is at the front door", "show me the front door"),
        VoiceCase(
            .timerSet, "minutes=5", "set a timer for five minutes", "start a 5 minute timer", "timer 5 minutes",
            "set timer 5 minutes",
            "remind me in five minutes", "count down from 5 minutes"),
        VoiceCase(
            .timerSet, "hours=1 minutes=30", "set a timer for one hour and thirty minutes",
            "timer for 1 hour 30 minutes"),
        VoiceCase(.timerSet, "minutes=2 seconds=30", "set a timer for two minutes thirty seconds"),
        VoiceCase(.timerSet, "minutes=30", "set a timer for half an hour", "wake me in half an hour"),
        VoiceCase(.timerSet, "hours=2 minutes=30", "set a timer for two and a half hours"),
        VoiceCase(.timerCancel, "", "cancel the timer", "stop my timer", "delete timer", "turn off the timer"),
        VoiceCase(.timerCancel, "minutes=10", "cancel the ten minute timer"),
        VoiceCase(.timerCancel, "count=all", "cancel all timers", "delete all my timers"),
        VoiceCase(
            .timerQuery, "", "how much time is left", "how long do I have left on the timer",
            "what's left on the timer", "when does the timer end"),
        VoiceCase(.timerPause, "", "pause the timer", "hold the timer", "pause my countdown", "freeze timer"),
        VoiceCase(
            .timerResume, "", "resume the timer", "continue the timer", "unpause my timer", "restart the countdown"),
        VoiceCase(
            .alarmSet, "hour=7", "wake me at seven", "set an alarm for 7 o'clock", "wake me up at 7",
            "set my alarm clock to seven"),
        VoiceCase(
            .alarmSet, "day=tomorrow hour=7 minute=30 period=am", "wake me at 7:30 a.m. tomorrow",
            "set an alarm for seven thirty in the morning tomorrow"),
        VoiceCase(.alarmSet, "hour=6 minute=30", "wake me at half past six", "set an alarm for six thirty"),
        VoiceCase(.alarmSet, "hour=6 minute=15", "wake me at quarter past six", "wake me at six fifteen"),
        VoiceCase(
            .alarmSet, "direction=to hour=6 minute=10", "wake me at ten to six", "set an alarm for 10 minutes to 6"),
        VoiceCase(
            .alarmSet, "day=monday hour=9 period=pm", "wake me at 9 pm on mondays", "set an alarm for 9 p.m. monday"),
        VoiceCase(
            .alarmCancel, "", "cancel the alarm", "delete my alarm clock", "remove the wake up call", "don't wake me up"
        ),
        VoiceCase(.alarmCancel, "day=tomorrow", "cancel the alarm tomorrow", "don't wake me tomorrow"),
        VoiceCase(.alarmCancel, "count=all", "cancel all alarms"),
        VoiceCase(
            .timeGet, "", "what time is it", "what's the time", "tell me the time please", "do you have the time"),
        VoiceCase(
            .dateGet, "", "what's the date", "what day is it today", "which day is today", "what is today's date"),
        VoiceCase(
            .volumeSet, "value=40", "set the volume to 40", "volume forty percent", "turn it down to 40%",
            "set volume to forty"),
        VoiceCase(.volumeSet, "value=0", "mute", "mute yourself"),
        VoiceCase(.volumeSet, "value=100", "full volume", "set the volume to max"),
        VoiceCase(.volumeUp, "", "louder", "turn it up", "volume up", "raise the volume", "make it louder"),
        VoiceCase(
            .volumeDown, "", "quieter", "turn it down a bit", "volume down", "that's too loud", "lower the volume"),
        VoiceCase(
            .deviceRaise, "name=lamp-1 what=brightness", "make the desk lamp brighter", "brighten the desk lamp a bit"),
        VoiceCase(.deviceLower, "name=lamp-1 what=brightness", "dim the desk lamp", "make the desk lamp a bit darker"),
        VoiceCase(
            .deviceRaise, "area=area-9 kind=light what=brightness", "brighter", "make it a bit brighter",
            "it's too dark in here", "brighten the lights"),
        VoiceCase(
            .deviceLower, "area=area-1 kind=light what=brightness", "dim the lights in the kitchen",
            "make it dimmer in the kitchen"),
        VoiceCase(
            .deviceRaise, "area=area-9 what=temperature", "warmer", "make it warmer", "it is too cold",
            "turn up the temperature"),
        VoiceCase(
            .deviceLower, "area=area-1 what=temperature", "make the kitchen colder",
            "lower the temperature in the kitchen"),
        VoiceCase(.stop, "", "stop", "stop it", "be quiet", "that's enough", "stop talking"),
        VoiceCase(.repeatReply, "", "repeat that", "say that again", "what did you say", "pardon"),
        VoiceCase(.help, "", "help", "what can I say", "what can you do", "how does this work"),
        VoiceCase(.yes, "", "yes", "sure", "yes please", "go ahead", "of course"),
        VoiceCase(.no, "", "no", "nope", "no thanks", "don't do it", "not that one"),
        VoiceCase(.cancel, "", "never mind", "cancel", "forget it", "cancel that please"),
    ]

    @Test("Sentences have their meaning", arguments: cases)
    func meanings(test: VoiceCase) throws {
        let grammar = try Self.grammar.get()
        for text in test.texts { #expect(grammar.best(text, VoiceCase.context) == test.summary, "\(text)") }
    }

    @Test("Each intent has four sentences in the tests", arguments: VoiceIntent.allCases)
    func coverage(intent: VoiceIntent) {
        #expect(Self.cases.filter { $0.intent == intent }.reduce(0) { $0 + $1.texts.count } >= 4)
    }

    @Test(
        "Near misses have no meaning",
        arguments: [
            "lock the garage bicycle", "lock the garage", "lock the desk lamp", "lock the", "lock", "lock everything",
            "unlock all doors", "unlock the fan", "unlock the front", "open the front window", "open the desk lamp",
            "open the garage bicycle", "close everything", "turn on the garden hose", "turn on the", "turn on",
            "turn on all lights", "turn off everything", "turn off all the lights", "turn on all lights in the cellar",
            "turn on the lights in the bathroom", "turn the desk lamp", "turn on the garage door",
            "turn off the back door",
            "set the desk lamp to 140 percent", "set the desk lamp to minus five percent",
            "set the thermostat to ninety",
            "set the thermostat to four degrees", "set the temperature in the cellar to 20 degrees", "set the fan to",
            "is the desk lamp open", "is the front window open", "is the thermostat locked", "call the bathroom",
            "call grandpa", "call", "call grandma grandma", "show the kitchen", "show the desk lamp",
            "show the garden on the radio", "show the garden on the bathroom screen", "arm the desk lamp",
            "disarm the front door", "set a timer", "set a timer for five", "set a timer for zero minutes",
            "set a timer for minutes", "set a timer for 500 hours", "wake me at 25", "wake me at seven sixty",
            "wake me", "set the volume to 101", "set the volume to", "what time", "what is it", "yes no", "no way home",
            "stop the garage", "stop sign", "cancel the garage door", "repeat the desk lamp", "helpful", "the",
            "please",
            "turnon the desk lamp", "desk lamp", "kitchen",
        ])
    func misses(text: String) throws {
        let grammar = try Self.grammar.get()
        #expect(grammar.all(text, VoiceCase.context) == [])
    }

    @Test("Without an area in the context, lights of no area are not meant")
    func noArea() throws {
        let grammar = try Self.grammar.get()
        for text in ["turn on the lights", "turn off the lights", "what's the temperature", "make it 20 degrees"] {
            #expect(grammar.all(text) == [], "\(text)")
            #expect(grammar.all(text, VoiceCase.context).count == 1, "\(text)")
        }
    }

    @Test("A home without devices has only sentences without them")
    func noDevices() throws {
        let yaml = try #require(VoiceTemplates.yaml(of: .english))
        let grammar = try Grammar(GrammarTemplates(GrammarSource(yaml: yaml)))
        #expect(grammar.best("what time is it") == "TimeGet")
        for text in ["turn on the desk lamp", "call grandma", "turn on the kitchen lights", "unlock the front door"] {
            #expect(grammar.all(text, VoiceCase.context) == [], "\(text)")
        }
        #expect(grammar.verdict(of: "unlock the") == .none)
    }

    @Test("The templates have all intents, and no other slots and lists than the declared ones")
    func names() throws {
        let grammar = try Self.grammar.get()
        #expect(grammar.templates.intentNames == VoiceIntent.allCases.map(\.rawValue))
        #expect(Set(grammar.templates.boundListNames) == Set(VoiceList.allCases.map(\.rawValue)))
        let slots = Set(grammar.sample(count: 3000, seed: 5).flatMap { $0.slots.map(\.name) })
        #expect(slots.isSubset(of: VoiceSlot.allCases.map(\.rawValue)))
    }
}
