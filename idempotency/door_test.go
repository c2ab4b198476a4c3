package idempotency

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Every test of these files runs twice: on the server, and through PgBouncer in transaction pooling, where two statements
// of a client meet in one session only if they are in one transaction. Faults of the wire strike between the service and
// PgBouncer, faults of the server behind it.
var pooledFiles = []string{"request_test.go", "wait_test.go", "faults_test.go", "table_test.go", "expiry_test.go", "rows_test.go", "hostile_test.go",
	"lease_test.go", "lease_keys_test.go", "table_lease_test.go"}

type pooledTest struct {
	name string
	test func(*testing.T)
}

var pooledTests = []pooledTest{
	{"TestRequest_AMissingKeyIsRefused", TestRequest_AMissingKeyIsRefused},
	{"TestRequest_AnInvalidKeyNeverReachesTheHandler", TestRequest_AnInvalidKeyNeverReachesTheHandler},
	{"TestRequest_ARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun", TestRequest_ARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun},
	{"TestRequest_AnswersOfEveryShapeComeBackByteForByte", TestRequest_AnswersOfEveryShapeComeBackByteForByte},
	{"TestRequest_AKeyWithAnotherRequestIsRefusedAndChangesNothing", TestRequest_AKeyWithAnotherRequestIsRefusedAndChangesNothing},
	{"TestRequest_WhatAFingerprintCovers", TestRequest_WhatAFingerprintCovers},
	{"TestRequest_TheOrderOfNamesIsIrrelevantWhatDiffersIsNot", TestRequest_TheOrderOfNamesIsIrrelevantWhatDiffersIsNot},
	{"TestRequest_FieldsThatMayDiffer", TestRequest_FieldsThatMayDiffer},
	{"TestWait_OfManyAtOnceOneRunsAndAllGetItsAnswer", TestWait_OfManyAtOnceOneRunsAndAllGetItsAnswer},
	{"TestWait_ARepeatWhileTheFirstRunsWaitsOrIsAConflict", TestWait_ARepeatWhileTheFirstRunsWaitsOrIsAConflict},
	{"TestWait_AWaitingRepeatRunsWhenTheFirstFails", TestWait_AWaitingRepeatRunsWhenTheFirstFails},
	{"TestWait_RepeatsThatWaitHoldNoConnection", TestWait_RepeatsThatWaitHoldNoConnection},
	{"TestRequest_AnotherKeyIsAnotherOperation", TestRequest_AnotherKeyIsAnotherOperation},
	{"TestRequest_AKeyBelongsToOnePrincipalAndOneOperation", TestRequest_AKeyBelongsToOnePrincipalAndOneOperation},
	{"TestRequest_WiderScopesNeverShowAnAnswerToSomebodyElse", TestRequest_WiderScopesNeverShowAnAnswerToSomebodyElse},
	{"TestRequest_APrincipalThatCannotBeFoundOutIsNoRefusal", TestRequest_APrincipalThatCannotBeFoundOutIsNoRefusal},
	{"TestRequest_WhatIsNotGuardedHearsSo", TestRequest_WhatIsNotGuardedHearsSo},
	{"TestRequest_WhichMethodsAreGuarded", TestRequest_WhichMethodsAreGuarded},
	{"TestRequest_AnOptionalKeyRunsTheHandlerInATransactionToo", TestRequest_AnOptionalKeyRunsTheHandlerInATransactionToo},
	{"TestRequest_KeysOfOtherSourcesAndForms", TestRequest_KeysOfOtherSourcesAndForms},
	{"TestRequest_ALongRequestIsRefused", TestRequest_ALongRequestIsRefused},
	{"TestFaults_TheLoserOfARaceGetsTheWinnersAnswer", TestFaults_TheLoserOfARaceGetsTheWinnersAnswer},
	{"TestFaults_WhatFailsLeavesNothingAndTheKeyFree", TestFaults_WhatFailsLeavesNothingAndTheKeyFree},
	{"TestFaults_AnAnswerOf4xxIsKeptAndItsWritesAreNot", TestFaults_AnAnswerOf4xxIsKeptAndItsWritesAreNot},
	{"TestFaults_AnAnswerNeverLeavesBeforeItsCommit", TestFaults_AnAnswerNeverLeavesBeforeItsCommit},
	{"TestFaults_WithoutADatabaseNobodyIsLetThrough", TestFaults_WithoutADatabaseNobodyIsLetThrough},
	{"TestFaults_AClientThatLeavesAfterTheHandlerReturnedChangesNothing", TestFaults_AClientThatLeavesAfterTheHandlerReturnedChangesNothing},
	{"TestFaults_AnAnswerTooLongToKeepIsNeverMadeAgain", TestFaults_AnAnswerTooLongToKeepIsNeverMadeAgain},
	{"TestFaults_ARowThatCannotBeTrustedStopsTheRequest", TestFaults_ARowThatCannotBeTrustedStopsTheRequest},
	{"TestFaults_ASerializationFailureRunsTheHandlerAgain", TestFaults_ASerializationFailureRunsTheHandlerAgain},
	{"TestFaults_APanicOfAnyFunctionOfTheRouteKeepsNothing", TestFaults_APanicOfAnyFunctionOfTheRouteKeepsNothing},
	{"TestTable_TheFaultTable", TestTable_TheFaultTable},
	{"TestTable_TheFaultTableOfProcesses", TestTable_TheFaultTableOfProcesses},
	{"TestExpiry_AnExpiredKeyIsANewRequestWhoeverCleansUp", TestExpiry_AnExpiredKeyIsANewRequestWhoeverCleansUp},
	{"TestExpiry_ATimeToLiveIsNotExtendedByReplays", TestExpiry_ATimeToLiveIsNotExtendedByReplays},
	{"TestExpiry_AKeyDoesNotExpireWhileItsLeaseIsRenewed", TestExpiry_AKeyDoesNotExpireWhileItsLeaseIsRenewed},
	{"TestExpiry_ARequestWhoseLeaseRunsIsNotResumed", TestExpiry_ARequestWhoseLeaseRunsIsNotResumed},
	{"TestExpiry_ManyRequestsOnAnExpiredKeyRunOnce", TestExpiry_ManyRequestsOnAnExpiredKeyRunOnce},
	{"TestExpiry_CleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse", TestExpiry_CleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse},
	{"TestExpiry_WhatIsExpiredCanBeKeptForAudits", TestExpiry_WhatIsExpiredCanBeKeptForAudits},
	{"TestExpiry_RunCleansUntilItHasToStop", TestExpiry_RunCleansUntilItHasToStop},
	{"TestRows_WhoseAccountWasRevokedGetsNoStoredAnswer", TestRows_WhoseAccountWasRevokedGetsNoStoredAnswer},
	{"TestRows_ALostAnswerToCommitIsFoundOut", TestRows_ALostAnswerToCommitIsFoundOut},
	{"TestRows_WhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut", TestRows_WhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut},
	{"TestRows_AnAnswerOutlivesTheProcessThatGaveIt", TestRows_AnAnswerOutlivesTheProcessThatGaveIt},
	{"TestRows_AReplayCanBeGivenMoreHeaders", TestRows_AReplayCanBeGivenMoreHeaders},
	{"TestRows_TheValidityOfAKeyIsShownOnlyWhereItIsAskedFor", TestRows_TheValidityOfAKeyIsShownOnlyWhereItIsAskedFor},
	{"TestRows_AGuardedDeleteRepliesWhatItRepliedFirst", TestRows_AGuardedDeleteRepliesWhatItRepliedFirst},
	{"TestRows_AUniqueRuleOfTheTablesDoesNotMeetARetry", TestRows_AUniqueRuleOfTheTablesDoesNotMeetARetry},
	{"TestRows_AReplayIsDecidedBeforeConditionsAre", TestRows_AReplayIsDecidedBeforeConditionsAre},
	{"TestRows_TheKeyForAnotherServiceIsTheSameInEveryTry", TestRows_TheKeyForAnotherServiceIsTheSameInEveryTry},
	{"TestRows_AReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise", TestRows_AReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise},
	{"TestRows_OnlyHeadersThatMeanTheSameLaterAreReplayed", TestRows_OnlyHeadersThatMeanTheSameLaterAreReplayed},
	{"TestHostile_AReferenceThatIsNoTextDoesNotCostTheEffect", TestHostile_AReferenceThatIsNoTextDoesNotCostTheEffect},
	{"TestHostile_FunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody", TestHostile_FunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody},
	{"TestHostile_ARequestWithoutWhatAFingerprintNeedsIsNotRetryable", TestHostile_ARequestWithoutWhatAFingerprintNeedsIsNotRetryable},
	{"TestHostile_APrincipalThatIsNoTextIsNobody", TestHostile_APrincipalThatIsNoTextIsNobody},
	{"TestHostile_AClientWhoseWaitIsOverLearnsThatItsRequestRuns", TestHostile_AClientWhoseWaitIsOverLearnsThatItsRequestRuns},
	{"TestLease_ALeasedRequestIsAnsweredOnceAndReplayedWithoutAWrite", TestLease_ALeasedRequestIsAnsweredOnceAndReplayedWithoutAWrite},
	{"TestLease_ARequestGoesOnAfterItsLastStep", TestLease_ARequestGoesOnAfterItsLastStep},
	{"TestLease_AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut", TestLease_AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut},
	{"TestLease_AMismatchIsSaidAlsoAfterALeaseThatRanOut", TestLease_AMismatchIsSaidAlsoAfterALeaseThatRanOut},
	{"TestLease_OfManyRequestsAtOnceUnderALeaseOneRuns", TestLease_OfManyRequestsAtOnceUnderALeaseOneRuns},
	{"TestLease_RequestsThatWaitForALeaseGetItsAnswer", TestLease_RequestsThatWaitForALeaseGetItsAnswer},
	{"TestLease_Trap30WhoIsThawedAfterItsLeaseWritesNothing", TestLease_Trap30WhoIsThawedAfterItsLeaseWritesNothing},
	{"TestLease_Trap30AHandlerHearsThatItsLeaseIsLost", TestLease_Trap30AHandlerHearsThatItsLeaseIsLost},
	{"TestLease_ALeaseIsRenewedWhileItsHandlerRuns", TestLease_ALeaseIsRenewedWhileItsHandlerRuns},
	{"TestLease_ALeaseOutlastsAStepThatTakesLonger", TestLease_ALeaseOutlastsAStepThatTakesLonger},
	{"TestLease_ARaceForAKeyIsDecidedByItsClaim", TestLease_ARaceForAKeyIsDecidedByItsClaim},
	{"TestLeaseKeys_WhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest", TestLeaseKeys_WhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest},
	{"TestLeaseKeys_AClientThatGoesAwayUnderALeaseFindsItsAnswerLater", TestLeaseKeys_AClientThatGoesAwayUnderALeaseFindsItsAnswerLater},
	{"TestLeaseKeys_OnlyAnUnfinishedRequestWithStepsOutlivesItsTTL", TestLeaseKeys_OnlyAnUnfinishedRequestWithStepsOutlivesItsTTL},
	{"TestLeaseKeys_AnExpiredKeyUnderALeaseIsANewRequestWithNewSteps", TestLeaseKeys_AnExpiredKeyUnderALeaseIsANewRequestWithNewSteps},
	{"TestLeaseKeys_ARouteThatChangesItsModeNeverRunsARequestTwice", TestLeaseKeys_ARouteThatChangesItsModeNeverRunsARequestTwice},
	{"TestLeaseKeys_ARequestWithoutAKeyRunsUnderNoLease", TestLeaseKeys_ARequestWithoutAKeyRunsUnderNoLease},
	{"TestTableLease_TheFaultTableOfLeases", TestTableLease_TheFaultTableOfLeases},
	{"TestTableLease_ALostReplyIsLookedUpAndTheRequestGoesOn", TestTableLease_ALostReplyIsLookedUpAndTheRequestGoesOn},
	{"TestTableLease_TheFaultTableOfProcessesUnderALease", TestTableLease_TheFaultTableOfProcessesUnderALease},
}

// notPooled are tests of those files that are about one session.
var notPooled = map[string]string{
	"TestExpiry_EveryStatementIsUnderstoodByPostgres": "it prepares statements",
	"TestLeaseKeys_DecisionsAboutLeases":              "it asks no database",
}

const pooledName = "TestDoor_TheSuiteThroughATransactionPooler"

func TestDoor_TheSchemaIsMadeThroughATransactionPooler(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe"} {
		db := throughBouncer(t, pgtest.New(t), mode)
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestDoor_TheSuiteThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	modes := []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe}
	if testing.Short() {
		modes = append(modes, pgx.QueryExecModeExec)
	} else {
		for _, c := range pooledTests {
			t.Run("exec/"+c.name, c.test)
		}
	}
	// How statements are sent is pgx's affair: one test of each kind shows that the other modes work too. Describe_exec
	// does not: it parses a statement in one session and may run another's in the next.
	for _, mode := range modes {
		mode := strings.ReplaceAll(mode.String(), " ", "_")
		for _, name := range []string{
			"TestRequest_AnswersOfEveryShapeComeBackByteForByte", "TestWait_OfManyAtOnceOneRunsAndAllGetItsAnswer",
			"TestFaults_AnAnswerOf4xxIsKeptAndItsWritesAreNot", "TestExpiry_ManyRequestsOnAnExpiredKeyRunOnce",
		} {
			i := slices.IndexFunc(pooledTests, func(c pooledTest) bool { return c.name == name })
			t.Run(mode+"/"+name, pooledTests[i].test)
		}
	}
}

// doorOf says by which door a test comes to its database: its name says so, as a subtest's name begins with its test's.
func doorOf(t *testing.T) (mode string, pooled bool) {
	rest, pooled := strings.CutPrefix(t.Name(), pooledName+"/")
	mode, _, _ = strings.Cut(rest, "/")
	return mode, pooled
}

// throughBouncer is a test's database as a client of PgBouncer sees it.
func throughBouncer(t *testing.T, db *pgtest.DB, mode string) *pgtest.DB {
	t.Helper()
	dsn, err := url.Parse(pgtest.Bouncer(t, db))
	if err != nil {
		t.Fatal("the pooler's address cannot be parsed")
	}
	query := dsn.Query()
	query.Set("default_query_exec_mode", mode)
	dsn.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = db.Config().MaxConns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &pgtest.DB{Pool: pool, DSN: dsn.String()}
}

func TestDoor_NoTestOfTheSuiteIsLeftOutOfThePooler(t *testing.T) {
	t.Parallel()
	for _, file := range pooledFiles {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || notPooled[f.Name.Name] != "" {
				continue
			}
			if !slices.ContainsFunc(pooledTests, func(c pooledTest) bool { return c.name == f.Name.Name }) {
				t.Errorf("%s of %s runs on the server only: add it to pooledTests", f.Name.Name, file)
			}
		}
	}
}
