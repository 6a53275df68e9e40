// All texts of the console, in English and Simplified Chinese.

import { textOf } from "../apus/texts.js";

/** @type {Record<string, [en: string, zh: string]>} */
export const texts = {
    // The frame of the page
    skip: ["Skip to content", "跳到内容"],
    menu: ["Pages", "页面"],
    home: ["Home", "家"],
    cluster: ["Cluster", "集群"],
    cameras: ["Cameras", "摄像机"],
    events: ["Events", "事件"],
    calls: ["Calls", "通话"],
    messages: ["Messages", "留言"],
    notices: ["Notices", "通知"],
    account: ["Account", "账户"],
    nodes: ["Nodes", "节点"],
    shards: ["Shards", "分片"],
    channels: ["Channels", "通道"],
    sessions: ["Sessions", "会话"],
    back: ["Back", "返回"],
    close: ["Close", "关闭"],
    cancel: ["Cancel", "取消"],
    save: ["Save", "保存"],
    remove: ["Remove", "移除"],
    refresh: ["Refresh", "刷新"],
    loading: ["Loading…", "正在加载…"],
    none: ["None", "无"],
    yes: ["Yes", "是"],
    no: ["No", "否"],
    notFound: ["There is no such page.", "没有这个页面。"],
    linkOffline: ["No node can be reached. Trying again…", "无法连接任何节点，正在重试…"],
    linkReplaced: ["This sign-in is used in another place. Sign in again to use it here.", "此登录已在其他地方使用。请重新登录。"],
    failed: ["{what} ({code})", "{what}（{code}）"],
    unreachable: ["The node cannot be reached.", "无法连接节点。"],
    // Sign-in
    signInTitle: ["Sign in", "登录"],
    signInLead: ["Open the sign-in link that the cluster has printed, or paste a token.", "请打开集群打印的登录链接，或粘贴令牌。"],
    token: ["Token", "令牌"],
    tokenHelp: ["For example from “apus admin token --role app”. It is kept in a cookie that no script can read.",
        "例如来自“apus admin token --role app”。它保存在脚本无法读取的 Cookie 中。"],
    signIn: ["Sign in", "登录"],
    signOut: ["Sign out", "退出登录"],
    signingIn: ["Signing in…", "正在登录…"],
    codeRefused: ["This link was used, or has expired. Ask for a new one.", "此链接已使用或已过期，请重新获取。"],
    tokenRefused: ["This token is not valid, or has expired.", "此令牌无效或已过期。"],
    tooMany: ["Too many attempts. Wait a minute and try again.", "尝试次数过多，请稍后再试。"],
    // Cameras
    search: ["Find a camera", "查找摄像机"],
    count: ["{shown} of {all}", "{shown} / {all}"],
    noCameras: ["No cameras yet", "还没有摄像机"],
    noCamerasHelp: ["A camera appears here when it signs in for the first time: apus device --id garden --test-pattern 640x360@25", "摄像机首次登录后会显示在这里：apus device --id garden --test-pattern 640x360@25"],
    noMatch: ["No camera has this name.", "没有符合的摄像机。"],
    online: ["Online", "在线"],
    offline: ["Offline", "离线"],
    asleep: ["Asleep", "休眠"],
    unknown: ["Not known", "未知"],
    disabled: ["Disabled", "已停用"],
    shared: ["Shared by {account}", "由 {account} 共享"],
    lastSeen: ["Last seen {time}", "最后在线：{time}"],
    openCamera: ["Open {name}", "打开 {name}"],
    // A camera
    talk: ["Call", "呼叫"],
    settings: ["Settings", "设置"],
    settingsNone: ["This device has no settings.", "此设备没有可设置的项目。"],
    pending: ["Waits for the device", "等待设备应用"],
    saved: ["Saved: {name}", "已保存：{name}"],
    states: ["State", "状态"],
    actions: ["Actions", "操作"],
    actionName: ["Name of an action", "操作名称"],
    choose: ["Choose", "选择"],
    argument: ["Value for {name}, in JSON", "{name} 的参数（JSON）"],
    run: ["Run", "执行"],
    ran: ["{name}: done", "{name}：已完成"],
    answer: ["Answer: {json}", "应答：{json}"],
    recent: ["Recent commands", "最近的命令"],
    COMMAND_STATUS_QUEUED: ["Queued", "排队中"],
    COMMAND_STATUS_SENT: ["Sent", "已发送"],
    COMMAND_STATUS_ACKNOWLEDGED: ["Received by the device", "设备已收到"],
    COMMAND_STATUS_ANSWERED: ["Done", "已完成"],
    COMMAND_STATUS_FAILED: ["Failed", "失败"],
    COMMAND_STATUS_EXPIRED: ["Expired", "已过期"],
    badJSON: ["This is not JSON.", "这不是有效的 JSON。"],
    sharing: ["Sharing", "共享"],
    sharedWith: ["Who may use this device", "可使用此设备的账户"],
    shareNone: ["Only your account.", "仅您的账户。"],
    shareAccount: ["Account", "账户"],
    shareControl: ["May also change settings and send commands", "还可更改设置和发送命令"],
    share: ["Invite", "邀请"],
    mayView: ["May watch", "可观看"],
    mayControl: ["May control", "可控制"],
    invited: ["Invited, not accepted yet", "已邀请，尚未接受"],
    endShare: ["End sharing with {account}", "停止与 {account} 共享"],
    leaveShare: ["Leave this device", "不再使用此设备"],
    invitedNow: ["{account} is invited.", "已邀请 {account}。"],
    recordings: ["Recordings on the device", "设备上的录像"],
    recordingsLoad: ["Show the last 24 hours", "显示最近 24 小时"],
    recordingsNone: ["Nothing was recorded in the last 24 hours.", "最近 24 小时没有录像。"],
    recordingsMissing: ["This device offers no recordings.", "此设备不提供录像。"],
    recordingPlay: ["Play from {time}", "从 {time} 播放"],
    recordingNow: ["Recording: {time}", "录像：{time}"],
    recordingEnded: ["The recording has ended.", "录像已播放完毕。"],
    recordingTime: ["Time in the recording", "录像时间"],
    resume: ["Play", "播放"],
    pause: ["Pause", "暂停"],
    live: ["Back to live", "返回实时画面"],
    timeline: ["Recorded times of the last 24 hours", "最近 24 小时的录像时段"],
    rights: ["Your account may only watch this device.", "您的账户只能观看此设备。"],
    // Events
    eventsNone: ["No events since this page was first opened", "自首次打开此页面以来没有事件"],
    eventsHelp: ["Motion, rings, shares and notices appear here as they happen.", "移动侦测、门铃、共享和通知会实时显示在这里。"],
    eventsMissed: ["Some earlier events are no longer kept.", "较早的部分事件已不再保留。"],
    eventsClear: ["Clear the list", "清空列表"],
    topicAlarm: ["Alarm", "告警"],
    topicShare: ["Sharing", "共享"],
    topicSystem: ["Notice", "通知"],
    // Calls
    ringing: ["{name} is calling", "{name} 来电"],
    accept: ["Answer", "接听"],
    decline: ["Decline", "拒绝"],
    hangUp: ["Hang up", "挂断"],
    calling: ["Calling {name}…", "正在呼叫 {name}…"],
    itRings: ["It rings…", "对方正在响铃…"],
    connecting: ["Connecting…", "正在连接…"],
    onCall: ["On a call with {name}", "正在与 {name} 通话"],
    leaveMessage: ["Nobody has answered. Leave a message after the greeting.", "无人接听。请在问候语后留言。"],
    callOver: ["The call has ended.", "通话已结束。"],
    callOverWhy: ["The call has ended: {reason}.", "通话已结束：{reason}。"],
    holdToTalk: ["Hold to talk", "按住说话"],
    talking: ["You are heard", "正在说话"],
    keepTalking: ["Keep the microphone on", "保持麦克风开启"],
    withCamera: ["Show your camera", "显示您的画面"],
    talkNeedsHttps: ["The browser allows the microphone only over https, or on this machine. You can watch and listen.",
        "浏览器仅在 https 或本机上允许使用麦克风。您仍可观看和收听。"],
    talkNeedsEncoder: ["This browser cannot encode sound. You can watch and listen.", "此浏览器无法编码声音。您仍可观看和收听。"],
    talkRefused: ["The microphone was not allowed: {reason}", "未获准使用麦克风：{reason}"],
    history: ["Past calls", "通话记录"],
    historyNone: ["No calls yet", "还没有通话"],
    historyHelp: ["A doorbell rings here, and you can call a camera from its page.", "门铃来电会显示在这里，您也可以在摄像机页面发起呼叫。"],
    callFrom: ["From {name}", "来自 {name}"],
    callTo: ["To {name}", "呼叫 {name}"],
    answered: ["Answered, {length}", "已接听，{length}"],
    missed: ["Not answered", "未接听"],
    hung_up: ["hung up", "已挂断"],
    cancelled: ["cancelled", "已取消"],
    rejected: ["declined", "已拒绝"],
    busy: ["busy", "忙线"],
    not_answered: ["not answered", "无人接听"],
    unreachable_party: ["not reachable", "无法接通"],
    answered_by_others: ["answered elsewhere", "已在其他设备接听"],
    message_left: ["a message was left", "已留言"],
    lost: ["the connection was lost", "连接中断"],
    // Messages
    messagesNone: ["No messages", "没有留言"],
    messagesHelp: ["If nobody answers a call, the answering machine takes a message.", "无人接听时，答录机会记录留言。"],
    messageFrom: ["Message from {name}", "来自 {name} 的留言"],
    messageNew: ["New", "新"],
    watch: ["Watch", "观看"],
    deleteMessage: ["Delete this message?", "删除此留言？"],
    deleteMessageText: ["It cannot be restored.", "删除后无法恢复。"],
    delete: ["Delete", "删除"],
    machine: ["Answering machine", "答录机"],
    machineOn: ["Take messages when nobody answers", "无人接听时记录留言"],
    machineAfter: ["Seconds until it answers", "应答前等待的秒数"],
    machineLength: ["Longest message in seconds", "最长留言秒数"],
    machineKeep: ["Days that messages are kept", "留言保留天数"],
    // Account
    language: ["Language", "语言"],
    signedInAs: ["Signed in as", "当前登录"],
    role: ["Role", "角色"],
    ROLE_APP: ["App: the devices of the account", "应用：账户的设备"],
    ROLE_ADMIN: ["Operator of the cluster", "集群运维"],
    connectedTo: ["Connected to", "已连接到"],
    invitations: ["Invitations", "邀请"],
    invitationsNone: ["No invitations.", "没有邀请。"],
    invitation: ["{account} shares {device}", "{account} 共享 {device}"],
    acceptShare: ["Accept", "接受"],
    signOutText: ["This ends the sign-in in all tabs and windows.", "将在所有标签页和窗口中退出登录。"],
    // Operator
    conditions: ["Conditions of this node", "此节点的状况"],
    conditionsNone: ["Nothing keeps this node from full service.", "此节点运行正常，没有异常状况。"],
    unhealthy: ["Out of service", "无法服务"],
    warning: ["Warning", "警告"],
    since: ["since {time}", "自 {time}"],
    node: ["Node", "节点"],
    state: ["State", "状态"],
    owned: ["Shards owned", "主分片"],
    standbyShards: ["Shards as standby", "备用分片"],
    weight: ["Weight", "权重"],
    address: ["Address", "地址"],
    actionsOf: ["Actions", "操作"],
    up: ["Up", "运行中"],
    draining: ["Draining", "正在排空"],
    drained: ["Drained", "已排空"],
    left: ["Left", "已离开"],
    dead: ["Dead", "已失效"],
    cordoned: ["Cordoned", "已封锁"],
    drain: ["Drain", "排空"],
    undrain: ["Undo drain", "取消排空"],
    cordon: ["Cordon", "封锁"],
    uncordon: ["Undo cordon", "取消封锁"],
    drainTitle: ["Drain {node}?", "排空 {node}？"],
    drainText: ["Its shards move to the other nodes, and its clients are sent there. Streams continue without a gap. Do this before the machine is restarted or removed.", "其分片将移至其他节点，客户端也会随之转移，媒体流不会中断。请在重启或移除机器前执行。"],
    undrainTitle: ["Let {node} take shards again?", "允许 {node} 重新接管分片？"],
    undrainText: ["Shards move back to it, a few at a time. Streams continue without a gap.", "分片会逐步移回此节点，媒体流不会中断。"],
    cordonTitle: ["Cordon {node}?", "封锁 {node}？"],
    cordonText: ["It keeps what it has, and gets no new shards. Clients stay connected.", "它保留现有分片，但不再接收新分片。客户端保持连接。"],
    uncordonTitle: ["End the cordon of {node}?", "取消封锁 {node}？"],
    uncordonText: ["It gets new shards again.", "它将重新接收新分片。"],
    done: ["{what}: accepted", "{what}：已受理"],
    revision: ["Revision {value} of the cluster map", "集群映射版本 {value}"],
    mapTitle: ["Owners of the shards", "分片归属"],
    mapLabel: ["Map of {count} shards, by their owner", "{count} 个分片的归属图"],
    noOwner: ["no owner", "无归属"],
    alone: ["{count} without a standby", "{count} 个没有备用"],
    why: ["Why is it there?", "为何在此？"],
    whyLabel: ["Number of a shard, or a device", "分片编号或设备名称"],
    ask: ["Explain", "说明"],
    owner: ["Owner", "主节点"],
    standby: ["Standby", "备用节点"],
    shard: ["Shard", "分片"],
    term: ["Term", "任期"],
    changes: ["Changes of the map", "映射变更"],
    changesNone: ["No changes are recorded.", "没有变更记录。"],
    changeNodes: ["Nodes", "节点"],
    changeMaker: ["Decided by", "决定者"],
    changeShards: ["Shards moved", "移动的分片"],
    time: ["Time", "时间"],
    change: ["Change", "变更"],
    joined: ["Joined", "加入"],
    rebalanced: ["Rebalanced", "重新平衡"],
    weighted: ["Weight changed", "权重变更"],
    restored: ["Restored", "恢复"],
    undrained: ["Drain undone", "取消排空"],
    uncordoned: ["Cordon undone", "取消封锁"],
    process_ended: ["its process ended", "进程已结束"],
    unheard_by_majority: ["most nodes did not hear it", "多数节点未收到其心跳"],
    lease_expired: ["its lease expired", "租约已过期"],
    operator: ["an operator", "运维人员"],
    channel: ["Channel", "通道"],
    primary: ["Primary", "主节点"],
    protection: ["Protection", "保护"],
    protected: ["Two nodes have each frame", "每帧由两个节点保存"],
    unprotected: ["One node only", "仅一个节点"],
    viewers: ["Viewers", "观看者"],
    newest: ["Newest frame", "最新帧"],
    channelsNone: ["No streams at the moment.", "目前没有媒体流。"],
    client: ["Client", "客户端"],
    accountOf: ["Account", "账户"],
    sinceHead: ["Since", "开始时间"],
    endSession: ["End", "结束"],
    endSessionTitle: ["End this session?", "结束此会话？"],
    endSessionText: ["The client of {access} is disconnected. It may connect again, unless its token is revoked.",
        "{access} 的客户端将断开连接。除非其令牌被吊销，否则可以重新连接。"],
    filterAccount: ["Only this account", "仅此账户"],
    hasMore: ["There are more than are shown.", "还有更多未显示。"],
    sessionsNone: ["No sessions.", "没有会话。"],
    shardsMisplaced: ["Shards on their way", "移动中的分片"],
    uptime: ["Up for", "运行时间"],
    wireVersion: ["Wire version", "协议版本"],
    updated: ["Updated {time}", "更新于 {time}"],
    hours: ["{hours} h {minutes} min", "{hours} 小时 {minutes} 分"],
    minutes: ["{minutes} min {seconds} s", "{minutes} 分 {seconds} 秒"],
};

const key = "apus-language";

/** "en" or "zh-Hans". */
export let language = chosen();

function chosen() {
    let stored = null;
    try {
        stored = globalThis.localStorage?.getItem(key) ?? null;
    } catch {
        // A browser may refuse the storage.
    }
    return stored ?? ((globalThis.navigator?.language ?? "en").toLowerCase().startsWith("zh") ? "zh-Hans" : "en");
}

/** @param {string} value */
export function setLanguage(value) {
    language = value;
    try {
        localStorage.setItem(key, value);
    } catch {
        // The choice lasts as long as the page.
    }
    document.documentElement.lang = value;
}

/**
 * @param {string} name
 * @param {Record<string, string | number>} [values]
 */
export const t = (name, values) => textOf(texts, name, language, values);

/**
 * What an error says to a person.
 * @param {any} error
 */
export function errorText(error) {
    if (error?.code === 21025) return t("unreachable");
    return t("failed", { what: error?.message || String(error), code: error?.code ?? "?" });
}

/**
 * A time of the last day without its date.
 * @param {number} milliseconds
 */
export function timeText(milliseconds) {
    if (!milliseconds) return "–";
    const date = new Date(milliseconds);
    const isToday = new Date().toDateString() === date.toDateString();
    /** @type {Intl.DateTimeFormatOptions} */
    const options = { hour: "2-digit", minute: "2-digit", second: "2-digit",
        ...(isToday ? {} : { month: "short", day: "numeric" }) };
    return new Intl.DateTimeFormat(language === "en" ? undefined : "zh-CN", options).format(date);
}

/** @param {number} seconds */
export function lengthText(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    if (whole >= 3600) return t("hours", { hours: Math.floor(whole / 3600), minutes: Math.floor(whole / 60) % 60 });
    return t("minutes", { minutes: Math.floor(whole / 60), seconds: whole % 60 });
}
